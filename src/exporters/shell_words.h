// ShellWords: one word of a shell script at a time, with its quotes removed and its variables in place. The half of
// shell_script.cc that knows nothing of commands. Not thread-safe.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace fivefold {

class ShellWords {
 public:
  ShellWords(std::string_view text, std::string where) : text_(text), where_(std::move(where)) {}

  // Reads the word at `at` and puts what it stands for at the end of `fields`: none, one or several. REQUIRES: `at` is
  // at no blank and no operator.
  Status word(size_t& at, std::vector<std::string>& fields);
  // A word that is not split: the value of an assignment.
  Result<std::string> value(size_t& at);
  // A here-document's text with its variables in place.
  Result<std::string> document(std::string_view body);

  void set(const std::string& name, std::vector<std::string> value);
  void append(const std::string& name, const std::vector<std::string>& value, bool array);
  bool has(const std::string& name) const { return variables_.contains(name); }
  const std::map<std::string, std::vector<std::string>>& variables() const { return variables_; }
  const std::vector<std::string>& unset() const { return unset_; }

  // "FILE:LINE" of a place in the text. Cheap when places are asked for in order.
  std::string place(size_t at);
  Error error(size_t at, std::string problem) { return {place(at), std::move(problem), ""}; }

 private:
  // The fields of a word as they grow.
  struct Word {
    std::vector<std::string> fields;
    std::string current;
    bool open = false;   // `current` is a field, if only of quotes
    bool splits = true;  // blanks of a variable end a field
    void add(std::string_view text) { current += text, open = true; }
    void add_split(std::string_view text);
    void add_list(const std::vector<std::string>& list);
    void close();
  };
  enum class Quotes : uint8_t { kNone, kDouble };

  Status read(std::string_view text, size_t& at, Word& word, int depth, size_t base);
  Status double_quoted(std::string_view text, size_t& at, Word& word, int depth, size_t base);
  Status dollar(std::string_view text, size_t& at, Word& word, Quotes quotes, int depth, size_t base);
  Status braces(std::string_view inner, Word& word, Quotes quotes, int depth, size_t base);
  Result<std::string> text_of(std::string_view text, int depth, size_t base);
  // The value, or `$name` as it is written, noted as unset.
  void add_variable(const std::string& name, Word& word, Quotes quotes, bool all);
  Status check_growth(const Word& word, size_t at);

  std::string_view text_;
  std::string where_;
  std::map<std::string, std::vector<std::string>> variables_;
  std::vector<std::string> unset_;
  size_t counted_at_ = 0, counted_lines_ = 1;
  size_t spent_ = 0;  // characters that variables put in place
};

// Whole-number arithmetic of $(( )): + - * / % and brackets, over numbers and variables. Nothing for anything else.
std::string shell_arithmetic(std::string_view text, const std::map<std::string, std::vector<std::string>>& variables);

// The length of the NAME that `text` begins with; 0: none.
size_t shell_name_length(std::string_view text);

}  // namespace fivefold
