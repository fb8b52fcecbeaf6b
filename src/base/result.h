// Result<T>: a value, or what is wrong with the input. Used wherever a user's input can be wrong (configuration, files,
// layouts). Never used for our own bugs (FIVEFOLD_CHECK) or for faults of the world while ranks run (exceptions).
#pragma once

#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace fivefold {

// What the user sees: the place ("run.toml: parallel.tp"), the problem ("6 does not divide 32 heads") and the nearest
// valid setting ("use 4 or 8"). `hint` may be empty when there is none.
struct Error {
  std::string where;
  std::string problem;
  std::string hint;

  // "where: problem (hint)", for logs and the terminal.
  std::string message() const {
    std::string text = where.empty() ? problem : where + ": " + problem;
    if (!hint.empty()) text += " (" + hint + ")";
    return text;
  }
};

// REQUIRES: value()/operator* only when ok(); error() only when !ok(). Both are checked.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  const T& value() const& {
    FIVEFOLD_CHECK(ok(), std::get<1>(state_).message());
    return std::get<0>(state_);
  }
  T& value() & {
    FIVEFOLD_CHECK(ok(), std::get<1>(state_).message());
    return std::get<0>(state_);
  }
  T&& value() && {
    FIVEFOLD_CHECK(ok(), std::get<1>(state_).message());
    return std::get<0>(std::move(state_));
  }
  const T& operator*() const& { return value(); }
  T& operator*() & { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  const T* operator->() const { return &value(); }
  T* operator->() { return &value(); }

  const Error& error() const {
    FIVEFOLD_CHECK(!ok());
    return std::get<1>(state_);
  }

 private:
  std::variant<T, Error> state_;
};

// A Result without a value: ok() or an error.
struct Ok {};
using Status = Result<Ok>;

}  // namespace fivefold

// Returns the error of `expression` from the enclosing function, if it has one.
#define FIVEFOLD_TRY(expression)                                 \
  do {                                                           \
    auto fivefold_status_ = (expression);                        \
    if (!fivefold_status_.ok()) return fivefold_status_.error(); \
  } while (false)

#define FIVEFOLD_CONCAT_INNER(a, b) a##b
#define FIVEFOLD_CONCAT(a, b) FIVEFOLD_CONCAT_INNER(a, b)
// FIVEFOLD_ASSIGN(auto x, f()): x = value of f(), or returns its error.
#define FIVEFOLD_ASSIGN(declaration, expression)                                                                     \
  auto FIVEFOLD_CONCAT(fivefold_result_, __LINE__) = (expression);                                                   \
  if (!FIVEFOLD_CONCAT(fivefold_result_, __LINE__).ok()) return FIVEFOLD_CONCAT(fivefold_result_, __LINE__).error(); \
  declaration = std::move(FIVEFOLD_CONCAT(fivefold_result_, __LINE__)).value()
