// The instructions of a pickle that build plain data: pickletools.py of CPython describes all. What would name a class
// or call something (GLOBAL, STACK_GLOBAL, REDUCE, NEWOBJ, BUILD, INST, persistent ids, extensions) ends the reading.
#include <bit>
#include <cstring>
#include <optional>
#include <unordered_map>

#include "record/plain_data.h"

namespace fivefold {
namespace {

using Kind = PlainData::Kind;
using Node = PlainData::Node;

enum Instruction : uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinFloat = 'G',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kAppend = 'a',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kList = 'l',
  kEmptyList = ']',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kSetItems = 'u',
  kDict = 'd',
  kEmptyDict = '}',
  kTuple = 't',
  kEmptyTuple = ')',
  kProto = 0x80,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kMemoize = 0x94,
  kFrame = 0x95,
};

class PickleReader {
 public:
  PickleReader(std::string_view bytes, const std::string& where) : bytes_(bytes), where_(where) {}

  Result<PlainData> read() {
    while (!stopped_ && !error_) {
      begin_ = at_;
      if (at_ >= bytes_.size()) {
        fail("is cut off");
        break;
      }
      step(static_cast<uint8_t>(bytes_[at_++]));
    }
    if (error_) return *error_;
    return std::move(data_);
  }

 private:
  void fail(const std::string& problem) {
    if (!error_) error_ = Error{where_ + ": byte " + std::to_string(begin_), problem, ""};
  }

  // `count` bytes; none when there are not as many.
  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - at_) {
      fail("is cut off");
      return {};
    }
    const std::string_view taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }
  // Little endian.
  uint64_t number(size_t width) {
    uint64_t value = 0;
    const std::string_view taken = take(width);
    for (size_t i = 0; i < taken.size(); ++i) value |= static_cast<uint64_t>(static_cast<uint8_t>(taken[i])) << (8 * i);
    return value;
  }

  void push(Node node) { stack_.push_back(node); }
  void push(PlainData::Value value) { push(data_.add(std::move(value))); }
  void push_integer(int64_t integer) { push(PlainData::Value{.kind = Kind::kInteger, .integer = integer}); }
  void push_text(std::string_view text) { push(PlainData::Value{.kind = Kind::kText, .text = std::string(text)}); }

  // Top of the stack, down to the last mark at most.
  std::optional<Node> pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) {
      fail("takes a value where there is none");
      return std::nullopt;
    }
    const Node node = stack_.back();
    stack_.pop_back();
    return node;
  }
  std::vector<Node> pop_to_mark() {
    if (marks_.empty()) {
      fail("has no mark");
      return {};
    }
    std::vector<Node> nodes(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return nodes;
  }
  // What is on top must be a `kind`.
  PlainData::Value* top(Kind kind) {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back()) || data_.kind(stack_.back()) != kind) {
      fail("adds to what is no list or dictionary");
      return nullptr;
    }
    return &data_.value(stack_.back());
  }

  void push_tuple(std::vector<Node> nodes) {
    push(PlainData::Value{.kind = Kind::kList, .elements = std::move(nodes)});
  }
  void push_tuple_of(size_t count) {
    std::vector<Node> nodes(count);
    for (size_t i = count; i > 0; --i) {
      const auto node = pop();
      if (!node) return;
      nodes[i - 1] = *node;
    }
    push_tuple(std::move(nodes));
  }
  void set_items(const std::vector<Node>& nodes) {
    PlainData::Value* dictionary = top(Kind::kDictionary);
    if (dictionary == nullptr) return;
    if (nodes.size() % 2 != 0) return fail("has a key without a value");
    for (size_t i = 0; i < nodes.size(); i += 2) dictionary->entries.emplace_back(nodes[i], nodes[i + 1]);
  }
  void append(const std::vector<Node>& nodes) {
    PlainData::Value* list = top(Kind::kList);
    if (list != nullptr) list->elements.insert(list->elements.end(), nodes.begin(), nodes.end());
  }
  // Two's complement, little endian; 0 when it does not fit.
  void push_long(uint64_t width) {
    const std::string_view taken = take(width);
    int64_t value = 0;
    if (!taken.empty() && taken.size() <= 8) {
      uint64_t bits = static_cast<int8_t>(taken.back()) < 0 ? ~uint64_t{0} : 0;
      for (size_t i = taken.size(); i > 0; --i) bits = bits << 8 | static_cast<uint8_t>(taken[i - 1]);
      value = static_cast<int64_t>(bits);
    } else if (taken.size() == 9 && taken.back() == '\0') {
      value = 0;  // an unsigned 64-bit number, an address
    }
    push_integer(value);
  }
  void push_real() {
    const std::string_view taken = take(8);
    uint64_t bits = 0;
    for (const char c : taken) bits = bits << 8 | static_cast<uint8_t>(c);
    push(PlainData::Value{.kind = Kind::kReal, .real = std::bit_cast<double>(bits)});
  }

  void remember(uint64_t key) {
    const auto node = pop();
    if (!node) return;
    push(*node);
    memo_[key] = *node;
  }
  void recall(uint64_t key) {
    const auto at = memo_.find(key);
    if (at == memo_.end()) return fail("refers to what was not stored");
    push(at->second);
  }

  // Scalars and texts; false when `instruction` is none of them.
  bool scalar(uint8_t instruction) {
    switch (instruction) {
      case kNone:
        push(PlainData::Value{});
        return true;
      case kNewTrue:
        push_integer(1);
        return true;
      case kNewFalse:
        push_integer(0);
        return true;
      case kBinInt:
        push_integer(static_cast<int32_t>(number(4)));
        return true;
      case kBinInt1:
        push_integer(static_cast<int64_t>(number(1)));
        return true;
      case kBinInt2:
        push_integer(static_cast<int64_t>(number(2)));
        return true;
      case kLong1:
        push_long(number(1));
        return true;
      case kLong4:
        push_long(number(4));
        return true;
      case kBinFloat:
        push_real();
        return true;
      case kShortBinUnicode:
      case kShortBinString:
      case kShortBinBytes:
        push_text(take(number(1)));
        return true;
      case kBinUnicode:
      case kBinString:
      case kBinBytes:
        push_text(take(number(4)));
        return true;
      case kBinUnicode8:
      case kBinBytes8:
        push_text(take(number(8)));
        return true;
      default:
        return false;
    }
  }

  // What takes from the stack or the memo.
  bool structure(uint8_t instruction) {
    switch (instruction) {
      case kMark:
        marks_.push_back(stack_.size());
        return true;
      case kEmptyList:
      case kEmptyTuple:
        push_tuple({});
        return true;
      case kEmptyDict:
        push(PlainData::Value{.kind = Kind::kDictionary});
        return true;
      case kTuple:
      case kList:
        push_tuple(pop_to_mark());
        return true;
      case kDict: {
        const std::vector<Node> nodes = pop_to_mark();
        push(PlainData::Value{.kind = Kind::kDictionary});
        set_items(nodes);
        return true;
      }
      case kTuple1:
      case kTuple2:
      case kTuple3:
        push_tuple_of(instruction - kTuple1 + 1U);
        return true;
      case kAppend: {
        const auto node = pop();
        if (node) append({*node});
        return true;
      }
      case kAppends:
        append(pop_to_mark());
        return true;
      case kSetItem: {
        const auto value = pop(), key = pop();
        if (value && key) set_items({*key, *value});
        return true;
      }
      case kSetItems:
        set_items(pop_to_mark());
        return true;
      case kPop:
        pop();
        return true;
      case kPopMark:
        pop_to_mark();
        return true;
      case kDup:
        if (const auto node = pop()) push(*node), push(*node);
        return true;
      default:
        return false;
    }
  }

  void step(uint8_t instruction) {
    if (scalar(instruction) || structure(instruction)) return;
    switch (instruction) {
      case kProto:
        if (const uint64_t protocol = number(1); protocol < 2 || protocol > 5)
          fail("is of protocol " + std::to_string(protocol) + ", known are 2 to 5");
        return;
      case kFrame:
        number(8);
        return;
      case kMemoize:
        return remember(memo_.size());
      case kBinPut:
        return remember(number(1));
      case kLongBinPut:
        return remember(number(4));
      case kBinGet:
        return recall(number(1));
      case kLongBinGet:
        return recall(number(4));
      case kStop:
        if (const auto node = pop()) data_.set_root(*node);
        stopped_ = true;
        return;
      default:
        fail("has the instruction " + std::to_string(instruction) + ", which does more than build plain data");
    }
  }

  std::string_view bytes_;
  std::string where_;
  size_t at_ = 0, begin_ = 0;
  PlainData data_;
  std::vector<Node> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, Node> memo_;
  std::optional<Error> error_;
  bool stopped_ = false;
};

}  // namespace

Result<PlainData> read_pickle(std::string_view bytes, const std::string& where) {
  return PickleReader(bytes, where).read();
}

}  // namespace fivefold
