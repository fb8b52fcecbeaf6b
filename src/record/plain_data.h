// PlainData: numbers, texts, lists and dictionaries as another program has saved them, from a pickle or from JSON. The
// reader of pickles knows the instructions that build plain data and no other: it names no class, calls nothing and
// imports nothing, so that a file from anywhere can be read. Parts that are shared in a pickle are shared here, so that
// what is read is no larger than the file makes it. Plain data; reading has no state: thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace fivefold {

class PlainData {
 public:
  using Node = uint32_t;
  enum class Kind : uint8_t { kNone, kInteger, kReal, kText, kList, kDictionary };

  // Of a document. Nothing where `node` is of another kind.
  Node root() const { return root_; }
  Kind kind(Node node) const { return nodes_[node].kind; }
  int64_t integer(Node node) const;        // 0 for other kinds; of a number beyond 64 bits too
  std::string_view text(Node node) const;  // "" for other kinds
  // Elements of a list (or tuple).
  const std::vector<Node>& elements(Node node) const;
  // Value of a key that is a text; root of an empty document without one: kNone.
  Node at(Node dictionary, std::string_view key) const;

  // For those who build one.
  PlainData() { add({}); }
  struct Value {
    Kind kind = Kind::kNone;
    int64_t integer = 0;
    double real = 0;
    std::string text;
    std::vector<Node> elements;                  // of a list
    std::vector<std::pair<Node, Node>> entries;  // of a dictionary
  };
  Node add(Value value);
  Value& value(Node node) { return nodes_[node]; }
  void set_root(Node node) { root_ = node; }

 private:
  std::vector<Value> nodes_;
  Node root_ = 0;
};

// A pickle of protocol 2 to 5. Errors ("FILE: byte 12"): cut off, an instruction that builds no plain data, a wrong
// stack.
Result<PlainData> read_pickle(std::string_view bytes, const std::string& where);
// Errors: no JSON, or too deeply nested.
Result<PlainData> read_json_data(std::string_view text, const std::string& where);

}  // namespace fivefold
