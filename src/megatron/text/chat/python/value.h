#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

// The values of a template, which are Python's: how they print, compare, index and slice, what json.dumps makes of
// them. What Python would refuse, or what is not known here, is a JinjaRefusal; never another value.
namespace megatron::text {

struct JinjaStatement;
struct JinjaScope;

/// What a template does that cannot be rendered, without its place.
struct JinjaRefusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What one rendering may still read and make. A template is a file from outside: ten lines of it can double a list
/// forty times, or multiply a text by a billion.
class JinjaBudget {
 public:
  explicit JinjaBudget(std::size_t bytes) : left_(bytes) {}

  /// Before `bytes` are made. Throws JinjaRefusal where they are too many.
  void make(std::size_t bytes);
  /// Before `bytes` are gone through.
  void read(std::size_t bytes) { make(bytes / 8); }

 private:
  std::size_t left_;
};

class JinjaValue {
 public:
  enum class Kind : std::uint8_t {
    Undefined,  ///< Jinja's, which prints as nothing
    None,
    Bool,
    Int,
    Float,
    String,
    List,
    Tuple,
    Range,
    View,       ///< of a dict: its items(), keys() or values(); has a length, no parts
    Generator,  ///< what map, select and their like give: each of its items once
    Dict,
    Namespace,
    Loop,  ///< the variable `loop`
    Cycler,
    Joiner,
    Callable,  ///< a macro, a function, a method that is not called
  };
  using Items = std::vector<JinjaValue>;
  using Members = std::vector<std::pair<JinjaValue, JinjaValue>>;
  struct Sequence {
    Items items;
    int depth = 1;          ///< levels of values within values, itself one: what goes over them may recurse
    bool is_group = false;  ///< a tuple that groupby gives: its parts are `grouper` and `list` too
    bool is_left = false;   ///< a generator within which a loop has ended
  };
  struct Mapping {
    Members members;
    int depth = 1;
    const JinjaValue* find(const JinjaValue& key) const;
    const JinjaValue* named(std::string_view key) const;
  };
  /// What a loop, a cycler or a joiner remembers.
  struct State {
    std::shared_ptr<const Sequence> items;
    std::size_t at = 0;
    std::size_t depth = 0;                      ///< of a loop: how often it was called by itself
    const JinjaStatement* recursive = nullptr;  ///< a loop that may be called, with the variables around it
    JinjaScope* scope = nullptr;
    Items changed;  ///< what loop.changed() was given last
    bool was_asked = false;
  };
  /// A function or, with a statement, a macro that reads and sets variables of `scope`. It is stored nowhere but in the
  /// variables of that scope and of those within it: put into no other value, it does not outlive them.
  struct Callable {
    std::string name;
    const JinjaStatement* statement = nullptr;
    JinjaScope* scope = nullptr;
  };

  JinjaValue() = default;
  JinjaValue(bool value) : kind_(Kind::Bool), data_(value) {}
  JinjaValue(std::int64_t value) : kind_(Kind::Int), data_(value) {}
  JinjaValue(double value) : kind_(Kind::Float), data_(value) {}
  JinjaValue(std::string text) : kind_(Kind::String), data_(std::make_shared<const std::string>(std::move(text))) {}
  JinjaValue(const char*) = delete;  // would be a bool
  explicit JinjaValue(const nlohmann::ordered_json& json);
  static JinjaValue none();
  static JinjaValue safe(std::string text);
  /// Throw JinjaRefusal for values nested too deep, and for parts that are no data: namespaces, loops, macros.
  static JinjaValue sequence(Kind kind, Items items);
  static JinjaValue dict(Members members);
  /// Puts a member behind the others, or another value into that of the same key.
  static void put(Members& members, JinjaValue key, JinjaValue value);
  static JinjaValue space(Members members);
  static JinjaValue group(JinjaValue key, Items items);
  static JinjaValue loop(std::shared_ptr<State> state);
  static JinjaValue turns(Kind kind, Items items);  ///< a cycler or a joiner
  static JinjaValue callable(Callable callable);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_sequence() const { return kind_ >= Kind::List && kind_ <= Kind::Range; }
  bool is_number() const { return kind_ == Kind::Bool || kind_ == Kind::Int || kind_ == Kind::Float; }
  bool is_safe() const { return safe_; }  ///< the filter "safe" was here: Python joins it to texts by escaping those
  bool truth() const;

  /// Throw JinjaRefusal, naming `of`, for a value of another kind.
  const std::string& text(std::string_view of) const;
  std::int64_t integer(std::string_view of) const;
  double number(std::string_view of) const;
  const Mapping& mapping() const { return *std::get<std::shared_ptr<Mapping>>(data_); }
  State& state() const { return *std::get<std::shared_ptr<State>>(data_); }
  const Callable& callable() const { return *std::get<std::shared_ptr<const Callable>>(data_); }

  /// What a loop over it gives; of a generator only once.
  Items items(std::string_view of) const;
  /// Of a generator: the next item alone, Undefined where there is none.
  JinjaValue next() const;
  /// Of a generator: a loop ends before its last item. How far Python has read ahead is not known: it is refused then.
  void leave() const;
  /// len(); throws JinjaRefusal for what has none.
  std::size_t length() const;
  /// ns.name = value
  void set_member(const std::string& name, JinjaValue value) const;
  /// value[key], and value.key: Undefined where there is none. Throws JinjaRefusal for parts of Undefined.
  JinjaValue item(const JinjaValue& key) const;
  JinjaValue attribute(const std::string& name) const;
  /// Throws JinjaRefusal of what is no sequence or string.
  JinjaValue slice(const JinjaValue& from, const JinjaValue& to, const JinjaValue& step) const;

  /// str()
  std::string printed(JinjaBudget& budget) const;
  /// repr()
  void represent(std::string& out, JinjaBudget& budget) const;
  bool equals(const JinjaValue& other, JinjaBudget& budget) const;
  /// Whether Python has a hash of it: lists and dicts have none, nor have tuples that hold some.
  bool is_hashable() const;
  /// a < b; throws JinjaRefusal for what has no order.
  bool less(const JinjaValue& other, JinjaBudget& budget) const;
  /// part in self
  bool contains(const JinjaValue& part, JinjaBudget& budget) const;
  /// What a message calls it.
  std::string_view name() const;

 private:
  const Sequence& list() const { return *std::get<std::shared_ptr<Sequence>>(data_); }
  Items& of_generator() const;
  bool is_list() const { return kind_ >= Kind::List && kind_ <= Kind::Generator; }
  int depth() const;

  Kind kind_ = Kind::Undefined;
  bool safe_ = false;
  std::variant<std::monostate, bool, std::int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<Sequence>, std::shared_ptr<Mapping>, std::shared_ptr<State>,
               std::shared_ptr<const Callable>>
      data_;
};

/// repr() of a float.
std::string spelled_number(double value);

}  // namespace megatron::text
