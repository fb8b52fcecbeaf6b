#include "exporters/shell_script.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "exporters/shell_words.h"

namespace fivefold {
namespace {

constexpr size_t kMaxText = size_t{1} << 20;
constexpr size_t kMaxNesting = 200;

// A compound command that is open.
struct Block {
  enum class Kind : uint8_t { kIf, kLoop, kCase } kind = Kind::kIf;
  bool outer = true;      // whether the surrounding text runs
  bool taken = false;     // a branch has run
  bool condition = true;  // of the branch at hand
  std::string subject;    // of a case
};

struct Document {
  std::string delimiter, file;
  bool quoted = false, indented = false;
};

class ScriptReader {
 public:
  ScriptReader(std::string_view text, const std::string& where) : text_(text), words_(text, where) {}

  Result<ShellScript> read(const std::map<std::string, std::string>& environment) {
    for (const auto& [name, value] : environment) words_.set(name, {value});
    while (at_ < text_.size()) FIVEFOLD_TRY(step());
    FIVEFOLD_TRY(end_command());
    for (const auto& [name, value] : words_.variables()) script_.variables[name] = join(value, " ");
    script_.unset = words_.unset();
    return std::move(script_);
  }

 private:
  bool runs() const {
    if (!gate_) return false;
    return blocks_.empty() || (blocks_.back().outer && blocks_.back().condition);
  }

  Status step() {
    const char c = text_[at_];
    if (c == ' ' || c == '\t' || c == '\r') return ++at_, Ok{};
    if (text_.substr(at_).starts_with("\\\n")) return at_ += 2, Ok{};
    if (c == '#') return comment();
    if (c == '\n') {
      ++at_;
      FIVEFOLD_TRY(end_command());
      gate_ = true;
      return documents();
    }
    if (c == ';' || c == '&' || c == '|' || c == '(' || c == ')') return separator();
    if (c == '<' || c == '>') return redirection();
    return word();
  }

  Status comment() {
    const size_t end = std::min(text_.find('\n', at_), text_.size());
    const std::string_view line = text_.substr(at_, end - at_);
    if (line.starts_with("#SBATCH")) {
      std::vector<std::string> parts;
      for (const std::string& part : split(std::string(line.substr(7)), ' '))
        if (!part.empty()) parts.push_back(part);
      for (size_t i = 0; i < parts.size(); ++i) {
        const std::string name = parts[i].substr(std::min(parts[i].find_first_not_of('-'), parts[i].size()));
        const size_t equals = name.find('=');
        if (equals != std::string::npos)
          script_.scheduler[name.substr(0, equals)] = name.substr(equals + 1);
        else if (parts[i].starts_with("-") && i + 1 < parts.size())
          script_.scheduler[name] = parts[i + 1];
      }
    }
    at_ = end;
    return Ok{};
  }

  Status separator() {
    const size_t begin = at_;
    const char c = text_[at_++];
    const bool twice = at_ < text_.size() && text_[at_] == c;
    if (twice) ++at_;
    if (c == '&' && !twice && at_ < text_.size() && text_[at_] == '>') return redirection();
    const bool test = command_.words.size() > 0 && (command_.words[0] == "[" || command_.words[0] == "[[");
    if (in_test_ && (c == '(' || c == ')')) return Ok{};
    if (in_test_ && (c == '&' || c == '|')) {
      // The parts of [[ A && B ]] as one test: an operator of its own.
      command_.words.push_back(c == '&' ? "&&" : "||");
      command_.places.push_back(words_.place(begin));
      return Ok{};
    }
    FIVEFOLD_TRY(end_command());
    if (decides_ && twice) {
      gate_ = c == '&' ? last_test_ : !last_test_;  // whether the next part of the condition is asked at all
    } else {
      if (twice && c == '&' && test) gate_ = gate_ && last_test_;
      if (twice && c == '|') gate_ = gate_ && test && !last_test_;
    }
    if (c == ';') gate_ = true;
    if (c == ';' && twice && !blocks_.empty() && blocks_.back().kind == Block::Kind::kCase) {
      blocks_.back().condition = false;
      pattern_ = true;
    }
    return Ok{};
  }

  Status redirection() {
    if (text_.substr(at_).starts_with("<<<")) return at_ += 3, Ok{};
    if (text_.substr(at_).starts_with("<<")) {
      at_ += 2;
      Document document;
      if (at_ < text_.size() && text_[at_] == '-') document.indented = true, ++at_;
      skip_blanks();
      document.quoted = at_ < text_.size() && (text_[at_] == '\'' || text_[at_] == '"' || text_[at_] == '\\');
      FIVEFOLD_ASSIGN(document.delimiter, words_.value(at_));
      if (document.delimiter.empty()) return words_.error(at_, "a here-document without a delimiter");
      documents_.push_back(document);
      return Ok{};
    }
    while (at_ < text_.size() && (text_[at_] == '<' || text_[at_] == '>' || text_[at_] == '&' || text_[at_] == '|'))
      ++at_;
    skip_blanks();
    if (at_ < text_.size() && text_[at_] == '(') return Ok{};  // process substitution
    FIVEFOLD_ASSIGN(file_, words_.value(at_));
    return Ok{};
  }

  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  }

  Status documents() {
    for (Document& document : documents_) {
      std::string body;
      bool ended = false;
      while (at_ < text_.size() && !ended) {
        const size_t end = std::min(text_.find('\n', at_), text_.size());
        std::string_view line = text_.substr(at_, end - at_);
        at_ = std::min(end + 1, text_.size());
        if (document.indented) line.remove_prefix(std::min(line.find_first_not_of('\t'), line.size()));
        ended = line == document.delimiter;
        if (!ended) body += std::string(line) + "\n";
      }
      if (!ended) return words_.error(at_, "the here-document " + document.delimiter + " does not end");
      if (!document.quoted) {
        FIVEFOLD_ASSIGN(body, words_.document(body));
      }
      if (!document.file.empty() && runs()) script_.documents[document.file] = body;
    }
    documents_.clear();
    return Ok{};
  }

  // NAME=, NAME+= at the start of a command, where a word begins.
  Status assignment(size_t name_length) {
    const std::string name(text_.substr(at_, name_length));
    at_ += name_length;
    const bool appends = text_[at_] == '+';
    at_ += appends ? 2 : 1;
    std::vector<std::string> value;
    const bool array = at_ < text_.size() && text_[at_] == '(';
    if (array) {
      const size_t begin = at_++;
      while (at_ < text_.size() && text_[at_] != ')') {
        const char c = text_[at_];
        if (c == '#')
          at_ = std::min(text_.find('\n', at_), text_.size());
        else if (c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == ';' || c == '&' || c == '|' || c == '(' ||
                 c == '<' || c == '>')
          ++at_;
        else
          FIVEFOLD_TRY(words_.word(at_, value));
      }
      if (at_ >= text_.size()) return words_.error(begin, "the list " + name + "=( does not end");
      ++at_;
    } else {
      FIVEFOLD_ASSIGN(std::string text, words_.value(at_));
      value.push_back(std::move(text));
    }
    if (!runs()) return Ok{};
    if (appends)
      words_.append(name, value, array);
    else
      words_.set(name, std::move(value));
    return Ok{};
  }

  Status word() {
    if (pattern_) return pattern();
    const bool at_start = std::all_of(command_.words.begin(), command_.words.end(), [](const std::string& word) {
      return word == "export" || word == "local" || word == "declare" || word == "readonly" || word.starts_with("-");
    });
    if (at_start) {
      const size_t length = shell_name_length(text_.substr(at_));
      const std::string_view rest = text_.substr(at_ + length);
      if (length > 0 && (rest.starts_with("=") || rest.starts_with("+="))) return assignment(length);
    }
    const size_t begin = at_;
    const size_t before = command_.words.size();
    FIVEFOLD_TRY(words_.word(at_, command_.words));
    if (at_ == begin) ++at_;  // a character that no rule takes
    // "2>&1": the number belongs to the redirection.
    if (at_ < text_.size() && (text_[at_] == '>' || text_[at_] == '<') && command_.words.size() == before + 1 &&
        at_ == begin + 1 && std::isdigit(static_cast<unsigned char>(text_[begin])))
      command_.words.pop_back();
    command_.places.resize(command_.words.size(), words_.place(begin));
    if (before == 0 && !command_.words.empty()) return keyword(text_.substr(begin, at_ - begin));
    if (in_test_ && !command_.words.empty() && (command_.words.back() == "]]" || command_.words.back() == "]"))
      in_test_ = false;
    return Ok{};
  }

  // The first word of a command, as it is written.
  Status keyword(std::string_view word) {
    const auto drop = [&] { command_ = {}; };
    if (word == "[" || word == "[[") in_test_ = true;
    if (word == "if") {
      if (blocks_.size() > kMaxNesting) return words_.error(at_, "conditions are nested too deeply");
      blocks_.push_back({.kind = Block::Kind::kIf, .outer = runs()});
      drop(), decides_ = true, last_test_ = true, negated_ = false;
    } else if (word == "for" || word == "while" || word == "until" || word == "select") {
      if (blocks_.size() > kMaxNesting) return words_.error(at_, "loops are nested too deeply");
      blocks_.push_back({.kind = Block::Kind::kLoop, .outer = runs()});
      if (word != "for") drop();
    } else if (word == "case") {
      if (blocks_.size() > kMaxNesting) return words_.error(at_, "conditions are nested too deeply");
      skip_blanks();
      Block block{.kind = Block::Kind::kCase, .outer = runs(), .condition = false};
      FIVEFOLD_ASSIGN(block.subject, words_.value(at_));
      skip_blanks();
      if (text_.substr(at_).starts_with("in")) at_ += 2;
      blocks_.push_back(block);
      drop(), pattern_ = true;
    } else if (word == "do" || word == "{" || word == "}" || word == "function" || word == "time") {
      drop();
    } else if (word == "!") {
      drop(), negated_ = true;
    } else if (!blocks_.empty()) {
      return inner_keyword(word);
    }
    return Ok{};
  }

  Status inner_keyword(std::string_view word) {
    Block& block = blocks_.back();
    const bool branch = block.kind == Block::Kind::kIf;
    if (word == "then" && branch) {
      block.condition = decides_ ? last_test_ && !block.taken : block.condition;
      block.taken = block.taken || block.condition;
      decides_ = false;
    } else if (word == "elif" && branch) {
      block.condition = true, decides_ = true, last_test_ = true, negated_ = false;
    } else if (word == "else" && branch) {
      block.condition = !block.taken;
    } else if ((word == "fi" && branch) || (word == "done" && block.kind == Block::Kind::kLoop) ||
               (word == "esac" && block.kind == Block::Kind::kCase)) {
      blocks_.pop_back();
      pattern_ = false;
    } else {
      return Ok{};
    }
    command_ = {};
    return Ok{};
  }

  // PATTERN | PATTERN ) of a case.
  Status pattern() {
    if (text_.substr(at_).starts_with("esac")) {
      at_ += 4;
      if (!blocks_.empty()) blocks_.pop_back();
      pattern_ = false;
      return Ok{};
    }
    const size_t end = text_.find(')', at_);
    if (end == std::string_view::npos) return words_.error(at_, "a case without `)`");
    std::string patterns(text_.substr(at_, end - at_));
    at_ = end + 1;
    Block& block = blocks_.back();
    for (std::string pattern : split(patterns, '|')) {
      std::erase_if(pattern, [](char c) { return c == ' ' || c == '"' || c == '\'' || c == '\n' || c == '\t'; });
      if (!block.taken && (pattern == "*" || pattern == block.subject)) block.condition = block.taken = true;
    }
    pattern_ = false;
    return Ok{};
  }

  Status end_command() {
    in_test_ = false;
    for (Document& document : documents_)
      if (document.file.empty()) document.file = file_;
    file_.clear();
    ShellCommand command = std::move(command_);
    command_ = {};
    if (command.words.empty()) return Ok{};
    command.places.resize(command.words.size());
    if (decides_ && !gate_) return Ok{};
    if (command.words[0] == "[" || command.words[0] == "[[" || decides_) {
      last_test_ = test(command.words) != negated_;
      negated_ = false;
      return Ok{};
    }
    if (command.words[0] == "for" && command.words.size() > 3 && command.words[2] == "in") {
      if (runs()) words_.set(command.words[1], {command.words[3]});  // the first round stands for all
      return Ok{};
    }
    if (runs()) script_.commands.push_back(std::move(command));
    return Ok{};
  }

  // [ A op B ]. Files that a script asks for are taken to be there; what is no such test does not hold.
  static bool test(const std::vector<std::string>& words) {
    bool result = true, negate = false;
    bool either = false;
    size_t i = 1;
    if (words[0] != "[" && words[0] != "[[") return false;
    while (i < words.size() && words[i] != "]" && words[i] != "]]") {
      if (words[i] == "&&" || words[i] == "-a") {
        if (!result) return false;
        ++i;
        continue;
      }
      if (words[i] == "||" || words[i] == "-o") {
        either = either || result;
        result = true;
        ++i;
        continue;
      }
      if (words[i] == "!") {
        negate = !negate, ++i;
        continue;
      }
      result = primary(words, i) != negate;
      negate = false;
    }
    return result || either;
  }

  static bool primary(const std::vector<std::string>& words, size_t& i) {
    const auto is_end = [&](size_t at) { return at >= words.size() || words[at] == "]" || words[at] == "]]"; };
    const std::string& first = words[i++];
    // A variable without a value is written as $NAME: for a test it is empty.
    const auto shown = [](const std::string& word) { return word.starts_with("$") ? std::string() : word; };
    if (first == "-z" || first == "-n") {
      const std::string word = is_end(i) ? "" : shown(words[i++]);
      return word.empty() == (first == "-z");
    }
    if (first.size() == 2 && first[0] == '-' && !is_end(i)) return ++i, true;
    if (is_end(i) || is_end(i + 1) || words[i] == "&&" || words[i] == "||") return !shown(first).empty();
    const std::string& operation = words[i];
    const std::string left = shown(first), right = shown(words[i + 1]);
    i += 2;
    if (operation == "=" || operation == "==" || operation == "-eq") return left == right;
    if (operation == "!=" || operation == "-ne") return left != right;
    const std::string zero = shell_arithmetic(left + "-(" + right + ")", {});
    if (zero.empty()) return false;
    const bool less = zero[0] == '-', equal = zero == "0";
    if (operation == "-lt") return less;
    if (operation == "-le") return less || equal;
    if (operation == "-gt") return !less && !equal;
    if (operation == "-ge") return !less;
    return false;
  }

  std::string_view text_;
  ShellWords words_;
  size_t at_ = 0;
  ShellScript script_;
  ShellCommand command_;
  std::string file_;  // where the command's output goes
  std::vector<Block> blocks_;
  std::vector<Document> documents_;
  bool gate_ = true;      // of A && B: whether B runs
  bool in_test_ = false;  // between [[ and ]]
  bool decides_ = false;  // between if and then
  bool last_test_ = true, negated_ = false;
  bool pattern_ = false;  // a case's pattern is next
};

}  // namespace

Result<ShellScript> read_shell_script(std::string_view text, const std::string& where,
                                      const std::map<std::string, std::string>& environment) {
  if (text.size() > kMaxText) return Error{where, "has more than 1 MiB", "a launch script is a small file"};
  return ScriptReader(text, where).read(environment);
}

}  // namespace fivefold
