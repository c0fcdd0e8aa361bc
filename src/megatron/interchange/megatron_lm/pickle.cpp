#include "megatron/interchange/megatron_lm/pickle.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/interchange/megatron_lm/pickle_names.h"

namespace megatron::interchange {
namespace {

using Kind = PickleNode::Kind;
using Index = std::uint32_t;

constexpr std::size_t kMaxNodes = std::size_t{1} << 22;  // of about 110 bytes; a model's file has 100 a tensor
constexpr std::size_t kMaxItems = std::size_t{1} << 24;  // of all containers, so that copies of one do not add up
constexpr std::size_t kMaxDims = 16, kMaxNameBytes = 256, kMaxShown = 120;

/// Text from the file in a message.
std::string shown(std::string_view text) { return printable(text.substr(0, kMaxShown)); }

class Machine {
 public:
  Machine(std::span<const std::byte> bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  Pickle run() {
    while (!stopped_) {
      begin_ = at_;
      opcode_ = number<std::uint8_t>();
      step();
    }
    if (at_ != bytes_.size()) refuse(concat(bytes_.size() - at_, " bytes after the end of the pickle"));
    return std::move(pickle_);
  }

 private:
  [[noreturn]] void refuse(const std::string& got) const {
    throw ConfigError(
        rule_got_fix(concat(file_, ": must be a pickle of tensors, numbers, strings and containers."),
                     concat(got, " at byte ", begin_, ", opcode ", opcode_name(opcode_)),
                     "a file from a source that you trust can be loaded with torch and its weights saved again alone"));
  }

  // The bytes.

  std::span<const std::byte> take(std::uint64_t size) {
    if (size > bytes_.size() - at_) refuse("the end of the pickle");
    const auto part = bytes_.subspan(at_, size);
    at_ += size;
    return part;
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string text(std::uint64_t size) {
    const auto part = take(size);
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }
  std::string line() {
    const auto rest = bytes_.subspan(at_);
    const auto end = std::find(rest.begin(), rest.end(), std::byte{'\n'});
    if (end == rest.end()) refuse("the end of the pickle");
    std::string result = text(static_cast<std::uint64_t>(end - rest.begin()));
    ++at_;
    return result;
  }

  // The values and the stack.

  PickleNode& node(Index index) { return pickle_.nodes[index]; }
  Index add(PickleNode value) {
    if (pickle_.nodes.size() == kMaxNodes) refuse(concat("more than ", kMaxNodes, " values"));
    pickle_.nodes.push_back(std::move(value));
    return static_cast<Index>(pickle_.nodes.size() - 1);
  }
  PickleNode& push(Kind kind) {
    PickleNode value;
    value.kind = kind;
    stack_.push_back(add(std::move(value)));
    return node(stack_.back());
  }
  void count_items(std::size_t count) {
    num_items_ += count;
    if (num_items_ > kMaxItems) refuse(concat("more than ", kMaxItems, " items"));
  }
  void push_integer(std::int64_t value) { push(Kind::Integer).integer = value; }
  void push_text(std::string value) { push(Kind::Text).text = std::move(value); }
  Index pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) refuse("nothing on the stack");
    const Index top = stack_.back();
    stack_.pop_back();
    return top;
  }
  Index top() {
    const Index result = pop();
    stack_.push_back(result);
    return result;
  }
  std::vector<Index> pop_to_mark() {
    if (marks_.empty()) refuse("no mark on the stack");
    count_items(stack_.size() - marks_.back());
    std::vector<Index> items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  void push_tuple(std::size_t size) {
    std::vector<Index> items(size);
    for (std::size_t i = size; i-- > 0;) items[i] = pop();
    push(Kind::Tuple).items = std::move(items);
  }
  void remember(std::uint64_t key) {
    memo_[key] = top();
    if (memo_.size() > kMaxNodes) refuse(concat("more than ", kMaxNodes, " remembered values"));
  }
  void recall(std::uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) refuse("a value that was not remembered");
    stack_.push_back(found->second);
  }
  void extend(Kind kind, const std::vector<Index>& items) {
    PickleNode& target = node(top());
    if (target.kind != kind || (kind == Kind::Dict && items.size() % 2 != 0)) refuse("items for something else");
    target.items.insert(target.items.end(), items.begin(), items.end());
  }

  /// A little-endian number of two's complement; one of more than 64 bits is data without a meaning here.
  void push_long(std::uint64_t size) {
    const auto part = take(size);
    if (size > 8) {
      push(Kind::Object).text = "int";
      return;
    }
    const bool negative = size > 0 && (part[size - 1] & std::byte{0x80}) != std::byte{0};
    std::uint64_t value = negative ? ~std::uint64_t{0} : 0;
    if (size > 0) std::memcpy(&value, part.data(), size);
    push_integer(static_cast<std::int64_t>(value));
  }
  void push_float() {
    std::uint64_t bits = number<std::uint64_t>();
    push(Kind::Float).number = std::bit_cast<double>(__builtin_bswap64(bits));
  }

  // Names, and what they make of their arguments.

  void push_name(const std::string& module, const std::string& name) {
    std::string full = module + "." + name;
    if (meaning_of(full) == NameMeaning::Unknown) refuse(concat("the global \"", shown(full), "\""));
    push(Kind::Name).text = std::move(full);
  }
  void push_stack_name() {
    const Index name = pop(), module = pop();
    if (node(name).kind != Kind::Text || node(module).kind != Kind::Text)
      refuse("a global that is not named by strings");
    if (node(name).text.size() > kMaxNameBytes || node(module).text.size() > kMaxNameBytes) refuse("a long global");
    push_name(node(module).text, node(name).text);
  }

  void call() {
    const Index tuple = pop_kind(Kind::Tuple, "arguments");
    count_items(node(tuple).items.size());
    std::vector<Index> arguments = node(tuple).items;
    std::string name = node(pop_kind(Kind::Name, "a name")).text;
    if (meaning_of(name) == NameMeaning::OfType) unwrap(name, arguments);
    switch (meaning_of(name)) {
      case NameMeaning::Dict:
        return push_dict(name, arguments);
      case NameMeaning::Namespace:
        if (!arguments.empty()) refuse("a namespace with arguments");
        push(Kind::Dict).text = name;
        return;
      case NameMeaning::Tuple:
        return push_size(arguments);
      case NameMeaning::Tensor:
        return push_tensor(arguments);
      case NameMeaning::First:
        if (arguments.empty() || node(arguments[0]).kind != Kind::Tensor) refuse("a parameter without a tensor");
        stack_.push_back(arguments[0]);
        return;
      case NameMeaning::Object: {
        PickleNode& object = push(Kind::Object);
        object.text = name;
        object.items = std::move(arguments);
        return;
      }
      default:
        refuse(concat("a call of \"", shown(name), "\""));
    }
  }
  /// (function, class, arguments, attributes): what the function makes of the arguments.
  void unwrap(std::string& name, std::vector<Index>& arguments) {
    if (arguments.size() != 4 || node(arguments[0]).kind != Kind::Name || node(arguments[2]).kind != Kind::Tuple)
      refuse("a tensor of a class without its arguments");
    name = node(arguments[0]).text;
    if (meaning_of(name) != NameMeaning::Tensor && meaning_of(name) != NameMeaning::First)
      refuse(concat("a call of \"", shown(name), "\" for a tensor"));
    arguments = std::vector<Index>(node(arguments[2]).items);
    count_items(arguments.size());
  }
  Index pop_kind(Kind kind, const char* what) {
    const Index index = pop();
    if (node(index).kind != kind) refuse(concat("something else than ", what));
    return index;
  }
  void push_dict(const std::string& name, const std::vector<Index>& arguments) {
    std::vector<Index> items;
    if (arguments.size() > 1 || (arguments.size() == 1 && node(arguments[0]).kind != Kind::List))
      refuse("an OrderedDict of something else than a list");
    if (!arguments.empty()) {
      count_items(2 * node(arguments[0]).items.size());
      for (const Index pair : node(arguments[0]).items) {
        const PickleNode& entry = node(pair);
        if ((entry.kind != Kind::Tuple && entry.kind != Kind::List) || entry.items.size() != 2)
          refuse("an OrderedDict of something else than pairs");
        items.insert(items.end(), entry.items.begin(), entry.items.end());
      }
    }
    PickleNode& dict = push(Kind::Dict);
    dict.text = name;
    dict.items = std::move(items);
  }
  void push_size(const std::vector<Index>& arguments) {
    if (arguments.size() != 1 || node(arguments[0]).kind != Kind::Tuple) refuse("a torch.Size of something else");
    stack_.push_back(arguments[0]);
  }

  /// ('storage', class, key, location, elements)
  void push_storage() {
    const Index tuple = pop_kind(Kind::Tuple, "a tuple that names a storage");
    if (node(tuple).items.size() != 5) refuse("a persistent id that is no storage's");
    const std::vector<Index> id = node(tuple).items;
    const auto is = [&](std::size_t i, Kind kind) { return node(id[i]).kind == kind; };
    if (!is(0, Kind::Text) || node(id[0]).text != "storage" || !is(1, Kind::Name) || !is(2, Kind::Text) ||
        !is(3, Kind::Text) || !is(4, Kind::Integer) || node(id[4]).integer < 0 ||
        node(id[2]).text.size() > kMaxNameBytes)
      refuse("a persistent id that is no storage's");
    const char* const dtype = storage_dtype(node(id[1]).text);
    if (dtype == nullptr) refuse(concat("a storage of \"", shown(node(id[1]).text), "\""));
    const std::string key = node(id[2]).text;
    const std::int64_t elements = node(id[4]).integer;
    PickleNode& storage = push(Kind::Storage);
    storage.text = key;
    storage.integer = elements;
    storage.dtype = dtype;
  }

  /// The whole numbers >= 0 of a tuple, appended to `into`.
  std::size_t append_sizes(Index tuple, std::vector<std::int64_t>& into) {
    if (node(tuple).kind != Kind::Tuple || node(tuple).items.size() > kMaxDims) refuse("a shape that is no tuple");
    for (const Index item : node(tuple).items) {
      if (node(item).kind != Kind::Integer || node(item).integer < 0) refuse("a shape that holds no sizes");
      into.push_back(node(item).integer);
    }
    return node(tuple).items.size();
  }
  /// (storage, first element, shape, strides, requires_grad, hooks[, metadata])
  void push_tensor(const std::vector<Index>& arguments) {
    if (arguments.size() < 6 || node(arguments[0]).kind != Kind::Storage || node(arguments[1]).kind != Kind::Integer ||
        node(arguments[1]).integer < 0)
      refuse("a tensor without a storage");
    PickleNode tensor;
    tensor.kind = Kind::Tensor;
    tensor.integer = node(arguments[1]).integer;
    tensor.items = {arguments[0]};
    const std::size_t dims = append_sizes(arguments[2], tensor.extents);
    if (append_sizes(arguments[3], tensor.extents) != dims) refuse("a tensor with another number of strides");
    bool is_empty = false, overflow = false, too_many = false;
    std::int64_t last = tensor.integer, elements = 1;  // the last element; how many
    for (std::size_t d = 0; d < dims; ++d) {
      std::int64_t reach = 0;
      is_empty = is_empty || tensor.extents[d] == 0;
      overflow = overflow || __builtin_mul_overflow(tensor.extents[d] - 1, tensor.extents[dims + d], &reach) ||
                 __builtin_add_overflow(last, reach, &last);
      too_many = too_many || __builtin_mul_overflow(elements, std::max<std::int64_t>(tensor.extents[d], 1), &elements);
    }
    if (overflow || (!is_empty && last >= node(arguments[0]).integer)) refuse("a tensor that reaches past its storage");
    // A stride of 0 repeats elements: a small file could ask for any amount of memory. No weight is stored so.
    if (!is_empty && (too_many || elements > node(arguments[0]).integer)) refuse("a tensor that repeats elements");
    stack_.push_back(add(std::move(tensor)));
  }

  /// A state for the value below it.
  void build() {
    const Index state = pop();
    PickleNode& object = node(top());
    if (object.kind == Kind::Object) {
      object.items.push_back(state);
    } else if (object.kind == Kind::Dict && meaning_of(object.text) == NameMeaning::Namespace) {
      if (node(state).kind != Kind::Dict) refuse("a namespace whose state is no dictionary");
      const std::vector<Index> items = node(state).items;
      count_items(items.size());
      object.items.insert(object.items.end(), items.begin(), items.end());
    } else if (object.kind != Kind::Dict && object.kind != Kind::Tensor) {  // of those: attributes nobody needs
      refuse("a state for something that has none");
    }
  }

  void step();
  bool step_container();
  bool step_scalar();

  std::span<const std::byte> bytes_;
  const std::string& file_;
  std::uint64_t at_ = 0, begin_ = 0;
  std::uint8_t opcode_ = 0;
  bool stopped_ = false;
  Pickle pickle_;
  std::vector<Index> stack_;
  std::vector<std::size_t> marks_;
  std::size_t num_items_ = 0;
  std::unordered_map<std::uint64_t, Index> memo_;
};

void Machine::step() {
  if (step_scalar() || step_container()) return;
  switch (opcode_) {
    case 0x80:  // PROTO
      if (const auto protocol = number<std::uint8_t>(); protocol < 2 || protocol > 5)
        refuse(concat("protocol ", int{protocol}));
      return;
    case 0x95:  // FRAME
      take(8);
      return;
    case '.':  // STOP
      pickle_.root = pop();
      stopped_ = true;
      return;
    case 'q':  // BINPUT
      return remember(number<std::uint8_t>());
    case 'r':  // LONG_BINPUT
      return remember(number<std::uint32_t>());
    case 0x94:  // MEMOIZE
      return remember(memo_.size());
    case 'h':  // BINGET
      return recall(number<std::uint8_t>());
    case 'j':  // LONG_BINGET
      return recall(number<std::uint32_t>());
    case 'c': {  // GLOBAL
      const std::string module = line();
      return push_name(module, line());
    }
    case 0x93:  // STACK_GLOBAL
      return push_stack_name();
    case 'R':   // REDUCE
    case 0x81:  // NEWOBJ
      return call();
    case 'b':  // BUILD
      return build();
    case 'Q':  // BINPERSID
      return push_storage();
    default:
      refuse("an opcode that torch.save does not write");
  }
}

bool Machine::step_scalar() {
  switch (opcode_) {
    case 'N':  // NONE
      push(Kind::None);
      return true;
    case 0x88:  // NEWTRUE
    case 0x89:  // NEWFALSE
      push(Kind::Bool).integer = opcode_ == 0x88;
      return true;
    case 'J':  // BININT
      push_integer(number<std::int32_t>());
      return true;
    case 'K':  // BININT1
      push_integer(number<std::uint8_t>());
      return true;
    case 'M':  // BININT2
      push_integer(number<std::uint16_t>());
      return true;
    case 0x8a:  // LONG1
      push_long(number<std::uint8_t>());
      return true;
    case 0x8b:  // LONG4
      push_long(number<std::uint32_t>());
      return true;
    case 'G':  // BINFLOAT
      push_float();
      return true;
    case 0x8c:  // SHORT_BINUNICODE
    case 'C':   // SHORT_BINBYTES
    case 'U':   // SHORT_BINSTRING
      push_text(text(number<std::uint8_t>()));
      return true;
    case 'X':  // BINUNICODE
    case 'B':  // BINBYTES
    case 'T':  // BINSTRING
      push_text(text(number<std::uint32_t>()));
      return true;
    case 0x8d:  // BINUNICODE8
    case 0x8e:  // BINBYTES8
      push_text(text(number<std::uint64_t>()));
      return true;
    default:
      return false;
  }
}

bool Machine::step_container() {
  switch (opcode_) {
    case '(':  // MARK
      marks_.push_back(stack_.size());
      return true;
    case ')':  // EMPTY_TUPLE
      push(Kind::Tuple);
      return true;
    case 0x85:  // TUPLE1
    case 0x86:  // TUPLE2
    case 0x87:  // TUPLE3
      push_tuple(opcode_ - 0x84u);
      return true;
    case 't': {  // TUPLE
      std::vector<Index> items = pop_to_mark();
      push(Kind::Tuple).items = std::move(items);
      return true;
    }
    case ']':   // EMPTY_LIST
    case 0x8f:  // EMPTY_SET
      push(Kind::List);
      return true;
    case '}':  // EMPTY_DICT
      push(Kind::Dict);
      return true;
    case 'a':  // APPEND
      extend(Kind::List, {pop()});
      return true;
    case 'e':   // APPENDS
    case 0x90:  // ADDITEMS
      extend(Kind::List, pop_to_mark());
      return true;
    case 's': {  // SETITEM
      const Index value = pop(), key = pop();
      extend(Kind::Dict, {key, value});
      return true;
    }
    case 'u':  // SETITEMS
      extend(Kind::Dict, pop_to_mark());
      return true;
    default:
      return false;
  }
}

}  // namespace

const PickleNode* Pickle::find(const PickleNode& dict, std::string_view key) const {
  if (dict.kind != Kind::Dict) return nullptr;
  for (std::size_t i = dict.items.size(); i >= 2; i -= 2)  // the last entry of a key counts
    if (const PickleNode& name = nodes[dict.items[i - 2]]; name.kind == Kind::Text && name.text == key)
      return &nodes[dict.items[i - 1]];
  return nullptr;
}

Pickle read_pickle(std::span<const std::byte> bytes, const std::string& file) { return Machine(bytes, file).run(); }

}  // namespace megatron::interchange
