#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/serve/api/responses.h"
#include "megatron/serve/tools/json_object_scanner.h"
#include "megatron/serve/tools/tool_syntax.h"

namespace megatron::serve {

/// What some of an answer adds to it.
struct ToolPiece {
  std::string text = {};
  std::vector<ToolCallPiece> calls = {};

  bool empty() const { return text.empty() && calls.empty(); }
  /// What comes later; pieces of one call become one.
  void add(const ToolPiece& later);
};

/// How to find the calls in an answer, and what to make of them.
struct ToolParsing {
  const ToolSyntax* syntax = nullptr;
  std::set<std::string> names = {};                     ///< of the tools: others are not called
  bool one = false;                                     ///< the answer ends with its first call
  bool live = false;                                    ///< pieces of a call come as it is written
  std::function<std::string(std::size_t)> new_id = {};  ///< of a call, by its place in the answer
};

/// Tells the calls in an answer from its text. A call is {"name": a tool, arguments: an object}, in the way of the
/// syntax; white space before and behind calls is left out. What begins as a call and turns out to be none, or does not
/// end, is text; of live calls the arguments are passed on as they come once they have begun, and cannot be taken back:
/// what follows then is passed on as the rest of the arguments.
class ToolCallParser {
 public:
  explicit ToolCallParser(ToolParsing parsing);

  /// What is certain of the text so far, however it is cut into pieces.
  ToolPiece push(std::string_view text);
  /// What was held back, of an answer that ends here.
  ToolPiece finish();

  /// Calls that are whole.
  std::size_t calls() const { return whole_; }
  /// Whether the answer is to end: it has its one call.
  bool full() const { return parsing_.one && whole_ > 0; }

 private:
  enum class Mode : std::uint8_t { Start, Text, Opened, Object, Between, Next, Closing, Rest, Broken };

  const ToolSyntax& syntax() const { return *parsing_.syntax; }
  void take(char c);
  void take_start(char c);
  void take_text(char c);
  void take_object(char c);
  void take_closing(char c);
  void open(std::string opening);
  void say(char c);
  /// The call under way is none; `c` comes after what was read of it.
  void fail(char c);
  void begin_object();
  bool announce();
  /// Whether the object is a call; says it.
  bool end_object();
  ToolCallPiece& piece();

  ToolParsing parsing_;
  Mode mode_;
  ToolPiece out_;
  std::string space_;    ///< white space of the text, which a call may follow
  std::string pending_;  ///< what may be the beginning of an opening or a closing
  std::string raw_;      ///< of the call under way, from its opening or the call before it on
  bool in_list_ = false;
  JsonObjectScanner scanner_;
  std::string object_, name_, arguments_;
  bool announced_ = false;  ///< the call under way has been said
  std::size_t said_ = 0, whole_ = 0;
};

}  // namespace megatron::serve
