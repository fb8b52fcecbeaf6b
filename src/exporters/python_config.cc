#include "exporters/python_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "exporters/python_tokens.h"

namespace fivefold {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 40;
constexpr int kMaxValues = 100000;
// Keys of a call's object that no Python name can be.
constexpr const char* kCall = "()";
constexpr const char* kLine = "@";

using Scope = std::map<std::string, Json>;

class Reader {
 public:
  Reader(std::vector<PythonToken> tokens, const std::string& where) : tokens_(std::move(tokens)), where_(where) {}

  Result<PythonConfig> read() {
    while (peek().kind != PythonToken::Kind::kEnd) FIVEFOLD_TRY(statement());
    for (const auto& [name, value] : results_)
      if (!called_.contains(name)) flatten(value, "", "", result_.functions[name]);
    for (const auto& [name, value] : globals_) flatten(value, name, "", result_.values);
    return std::move(result_);
  }

 private:
  const PythonToken& peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  PythonToken take() {
    PythonToken token = peek();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool is(std::string_view symbol, size_t ahead = 0) const {
    return peek(ahead).kind == PythonToken::Kind::kSymbol && peek(ahead).text == symbol;
  }
  bool accept(std::string_view symbol) {
    if (!is(symbol)) return false;
    take();
    return true;
  }
  Error error(const PythonToken& token, std::string problem) const {
    return {fmt::format("{}:{}", where_, token.line), std::move(problem), ""};
  }
  void skip_line() {
    while (peek().kind != PythonToken::Kind::kNewline && peek().kind != PythonToken::Kind::kEnd) take();
    if (peek().kind == PythonToken::Kind::kNewline) take();
  }

  // A name stands for its value once more: what that adds up to is bounded, and how deep it is.
  bool affordable(const Json& value, int depth) {
    if (depth > kMaxDepth || ++values_ > kMaxValues) return false;
    if (value.is_structured())
      for (const Json& inner : value)
        if (!affordable(inner, depth + 1)) return false;
    return true;
  }

  Scope& scope() { return function_.empty() ? globals_ : locals_; }

  Status statement() {
    const PythonToken first = peek();
    if (first.kind == PythonToken::Kind::kNewline) return take(), Ok{};
    if (first.column == 0 && first.kind == PythonToken::Kind::kName && first.text != "return") function_.clear();
    if (first.text == "from") return import();
    if (first.text == "def") return definition();
    if (first.text == "return" && !function_.empty()) {
      take();
      FIVEFOLD_ASSIGN(Json value, expression(0));
      if (!results_.contains(function_)) results_[function_] = std::move(value);
      return skip_line(), Ok{};
    }
    if (first.kind != PythonToken::Kind::kName) return skip_line(), Ok{};
    return assignment();
  }

  Status import() {
    take();
    std::string module;
    while (peek().kind != PythonToken::Kind::kNewline && peek().text != "import") module += take().text;
    take();
    while (peek().kind != PythonToken::Kind::kNewline && peek().kind != PythonToken::Kind::kEnd)
      if (const PythonToken name = take(); name.kind == PythonToken::Kind::kName && name.text != "as")
        result_.imports[name.text] = module;
    return Ok{};
  }

  Status definition() {
    take();
    function_ = take().text;
    locals_.clear();
    // A function with arguments is a part of others.
    if (!(is("(") && is(")", 1))) called_[function_] = true;
    skip_line();
    return Ok{};
  }

  // name = value, name: type = value, name.part.field = value.
  Status assignment() {
    std::vector<std::string> path = {take().text};
    while (is(".") && peek(1).kind == PythonToken::Kind::kName) {
      take();
      path.push_back(take().text);
    }
    if (path.size() > kMaxDepth) return error(peek(), "is nested too deeply");
    if (is(":") && path.size() == 1)
      while (!is("=") && peek().kind != PythonToken::Kind::kNewline && peek().kind != PythonToken::Kind::kEnd) take();
    if (!is("=")) return skip_line(), Ok{};
    const size_t line = take().line;
    FIVEFOLD_ASSIGN(Json value, expression(0));
    if (peek().kind != PythonToken::Kind::kNewline && peek().kind != PythonToken::Kind::kEnd) {
      // An operator that is not understood: a later value must not pass for this one.
      value = "...";
    }
    Json* target = &scope()[path[0]];
    for (size_t i = 1; i < path.size(); ++i) {
      if (!target->is_object()) *target = Json::object();
      (*target)[kLine + path[i]] = line;
      target = &(*target)[path[i]];
    }
    *target = std::move(value);
    return skip_line(), Ok{};
  }

  Result<Json> expression(int depth) {
    if (depth > kMaxDepth) return error(peek(), "is nested too deeply");
    FIVEFOLD_ASSIGN(Json left, product(depth));
    while (is("+") || is("-")) {
      const bool minus = take().text == "-";
      FIVEFOLD_ASSIGN(const Json right, product(depth));
      left = numbers(left, right, minus ? '-' : '+');
    }
    // `a if test else b`: the first.
    if (peek().text == "if" || peek().text == "and" || peek().text == "or" || peek().text == "in" || is("==")) {
      skip_operand();
      if (left.is_object()) return left;
      return Json("...");
    }
    return left;
  }

  void skip_operand() {
    for (int depth = 0; peek().kind != PythonToken::Kind::kEnd; take()) {
      if (depth == 0 && (is(",") || is(")") || is("]") || is("}") || peek().kind == PythonToken::Kind::kNewline))
        return;
      if (is("(") || is("[") || is("{")) ++depth;
      if (is(")") || is("]") || is("}")) --depth;
    }
  }

  Result<Json> product(int depth) {
    FIVEFOLD_ASSIGN(Json left, unary(depth));
    while (is("*") || is("//") || is("/") || is("**")) {
      const std::string operation = take().text;
      FIVEFOLD_ASSIGN(const Json right, unary(depth));
      left = numbers(left, right, operation == "**" ? '^' : operation[0]);
    }
    return left;
  }

  static Json numbers(const Json& left, const Json& right, char operation) {
    if (!left.is_number() || !right.is_number()) return "...";
    const double a = left.get<double>(), b = right.get<double>();
    const double value = operation == '+'   ? a + b
                         : operation == '-' ? a - b
                         : operation == '*' ? a * b
                         : operation == '^' ? std::pow(a, b)
                         : b != 0           ? a / b
                                            : std::nan("");
    if (!std::isfinite(value)) return "...";
    if (value == std::floor(value) && std::fabs(value) < 1e15 && left.is_number_integer() && right.is_number_integer())
      return static_cast<int64_t>(value);
    return value;
  }

  Result<Json> unary(int depth) {
    if (depth > kMaxDepth || ++values_ > kMaxValues) return error(peek(), "is nested too deeply or too long");
    if (accept("-")) {
      FIVEFOLD_ASSIGN(const Json value, unary(depth + 1));
      return numbers(0, value, '-');
    }
    if (accept("*") || accept("**") || accept("+")) return unary(depth + 1);
    const PythonToken token = peek();
    switch (token.kind) {
      case PythonToken::Kind::kNumber:
        return number(take().text);
      case PythonToken::Kind::kText: {
        std::string text;
        while (peek().kind == PythonToken::Kind::kText) text += take().text;
        return Json(text);
      }
      case PythonToken::Kind::kSymbol:
        if (is("[") || is("(")) return list(depth);
        if (is("{")) return dictionary(depth);
        return error(token, fmt::format("`{}` where a value should be", token.text));
      case PythonToken::Kind::kName:
        return name(depth);
      default:
        return error(token, "a value is missing");
    }
  }

  static Json number(const std::string& text) {
    int64_t whole = 0;
    const char* end = text.data() + text.size();
    if (const auto [at, status] = std::from_chars(text.data(), end, whole); status == std::errc{} && at == end)
      return whole;
    double value = 0;
    if (const auto [at, status] = std::from_chars(text.data(), end, value);
        status == std::errc{} && at == end && std::isfinite(value))
      return value;
    return text;
  }

  Result<Json> list(int depth) {
    const std::string close = take().text == "[" ? "]" : ")";
    Json values = Json::array();
    bool comma = close == "]";
    while (!is(close)) {
      FIVEFOLD_ASSIGN(Json value, argument_value(depth));
      values.push_back(std::move(value));
      if (!is(close) && !accept(","))
        return error(peek(), fmt::format("`{}` where `{}` or a comma should be", peek().text, close));
      comma = comma || !is(close) || values.size() > 1;
    }
    take();
    // (x) is x.
    if (!comma && values.size() == 1) return values[0];
    return values;
  }

  Result<Json> dictionary(int depth) {
    take();
    Json values = Json::object();
    while (!is("}")) {
      FIVEFOLD_ASSIGN(const Json key, expression(depth + 1));
      if (accept(":")) {
        FIVEFOLD_ASSIGN(values[key.is_string() ? key.get<std::string>() : key.dump()], argument_value(depth));
      }
      if (!is("}") && !accept(","))
        return error(peek(), fmt::format("`{}` where `}}` or a comma should be", peek().text));
    }
    take();
    return values;
  }

  // A value up to a comma; a lambda or a comprehension is not understood as a whole.
  Result<Json> argument_value(int depth) {
    if (peek().text == "lambda") {
      skip_operand();
      return Json("lambda");
    }
    FIVEFOLD_ASSIGN(Json value, expression(depth + 1));
    if (peek().text == "for") {
      skip_operand();
      return Json("...");
    }
    return value;
  }

  // A name with its attributes and calls.
  Result<Json> name(int depth) {
    const PythonToken token = take();
    if (token.text == "True") return Json(true);
    if (token.text == "False") return Json(false);
    if (token.text == "None") return Json(nullptr);
    if (token.text == "not") {
      FIVEFOLD_TRY(unary(depth + 1));
      return Json("...");
    }
    std::string path = token.text;
    Json value;
    bool known = false;
    const auto find = [&](const Scope& scope) {
      const auto found = scope.find(path);
      if (found != scope.end()) value = found->second, known = true;
    };
    find(globals_);
    if (!function_.empty()) find(locals_);
    if (!affordable(value, 0)) return error(token, "stands for more than a configuration holds");
    while (is(".") || is("(") || is("[")) {
      if (accept(".")) {
        const std::string field = take().text;
        path += "." + field;
        if (known && value.is_object() && value.contains(field))
          value = Json(value[field]);
        else
          known = false;
      } else if (is("(")) {
        FIVEFOLD_ASSIGN(value, call(path, token.line, depth));
        known = true;
      } else {
        FIVEFOLD_TRY(list(depth));
        known = false;
      }
    }
    return known ? value : Json(path);
  }

  Result<Json> call(const std::string& path, size_t line, int depth) {
    take();
    Json value = Json::object();
    if (const auto found = results_.find(path); found != results_.end()) value = found->second, called_[path] = true;
    if (!affordable(value, 0)) return error(peek(), "stands for more than a configuration holds");
    if (!value.is_object()) value = Json::object();
    if (!value.contains(kCall)) value[kCall] = path;
    value[kLine] = line;
    int number = 0;
    while (!is(")")) {
      std::string field = std::to_string(number);
      const size_t field_line = peek().line;
      if (peek().kind == PythonToken::Kind::kName && is("=", 1)) {
        field = take().text;
        take();
      } else {
        ++number;
      }
      FIVEFOLD_ASSIGN(Json argument, argument_value(depth));
      value[kLine + field] = field_line;
      value[field] = std::move(argument);
      if (!is(")") && !accept(","))
        return error(peek(), fmt::format("`{}` where `)` or a comma should be", peek().text));
    }
    take();
    return value;
  }

  std::string place(const Json& holder, const std::string& field) const {
    const std::string key = kLine + field;
    return holder.is_object() && holder.contains(key) ? fmt::format("{}:{}", where_, holder[key].get<size_t>())
                                                      : where_;
  }

  void flatten(const Json& value, const std::string& name, const std::string& place_of, ForeignSettings& into) const {
    if (!value.is_object()) {
      if (!name.empty()) into.add(name, plain(value), place_of.empty() ? where_ : place_of);
      return;
    }
    if (!name.empty())
      into.add(name, value.contains(kCall) ? Json(value[kCall]) : Json("{}"), place_of.empty() ? where_ : place_of);
    for (const auto& [field, inner] : value.items())
      if (field != kCall && !field.starts_with(kLine))
        flatten(inner, name.empty() ? field : name + "." + field, place(value, field), into);
  }

  // Without the marks of calls.
  static nlohmann::json plain(const Json& value) {
    if (value.is_array()) {
      nlohmann::json list = nlohmann::json::array();
      for (const Json& item : value) list.push_back(plain(item));
      return list;
    }
    if (!value.is_object()) return value;
    nlohmann::json object = nlohmann::json::object();
    for (const auto& [key, inner] : value.items())
      if (!key.starts_with(kLine)) object[key] = plain(inner);
    return object;
  }

  std::vector<PythonToken> tokens_;
  const std::string& where_;
  size_t at_ = 0;
  int values_ = 0;
  std::string function_;  // that a statement belongs to
  Scope globals_, locals_;
  std::map<std::string, Json> results_;
  std::map<std::string, bool> called_;
  PythonConfig result_;
};

}  // namespace

Result<PythonConfig> read_python_config(std::string_view text, const std::string& where) {
  FIVEFOLD_ASSIGN(std::vector<PythonToken> tokens, read_python_tokens(text, where));
  return Reader(std::move(tokens), where).read();
}

}  // namespace fivefold
