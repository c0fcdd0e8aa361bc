#include "megatron/serve/tools/tool_call_parser.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "megatron/base/text/json.h"

namespace megatron::serve {
namespace {

/// Both keys are taken, whichever the syntax has: models mix them up.
bool is_arguments_key(std::string_view key) { return key == "arguments" || key == "parameters"; }
/// The members of a call, with the id and the type that some models add.
bool is_member_of_call(std::string_view key) {
  return key == "name" || key == "id" || key == "type" || is_arguments_key(key);
}

/// The string that a JSON text is.
std::optional<std::string> string_in(std::string_view json) {
  const auto value = try_parse_json(json);
  return value && value->is_string() ? std::optional(value->get<std::string>()) : std::nullopt;
}

}  // namespace

void ToolPiece::add(const ToolPiece& later) {
  text += later.text;
  for (const ToolCallPiece& call : later.calls) {
    if (!calls.empty() && calls.back().index == call.index)
      calls.back().arguments += call.arguments;
    else
      calls.push_back(call);
  }
}

ToolCallParser::ToolCallParser(ToolParsing parsing)
    : parsing_(std::move(parsing)), mode_(syntax().opening.empty() ? Mode::Start : Mode::Text) {}

ToolPiece ToolCallParser::push(std::string_view text) {
  for (const char c : text)
    if (!full()) take(c);
  return std::exchange(out_, {});
}

ToolPiece ToolCallParser::finish() {
  std::string rest;
  if (!full() && !announced_) {
    if (mode_ == Mode::Opened || mode_ == Mode::Object) rest = std::exchange(raw_, "");
    if (mode_ == Mode::Start || mode_ == Mode::Text) rest = std::exchange(pending_, "");
  }
  for (const char c : rest) say(c);
  if (said_ == 0) out_.text += std::exchange(space_, "");
  return std::exchange(out_, {});
}

void ToolCallParser::take(char c) {
  switch (mode_) {
    case Mode::Start:
      return take_start(c);
    case Mode::Text:
      return take_text(c);
    case Mode::Object:
      return take_object(c);
    case Mode::Closing:
      return take_closing(c);
    case Mode::Rest:
      return say(c);
    case Mode::Broken:
      piece().arguments += c;
      return;
    case Mode::Opened:
    case Mode::Next:
      if (c == '{' && (in_list_ || !syntax().list)) {
        begin_object();
        return take_object(c);
      }
      if (!is_json_space(c) && (c != '[' || in_list_ || !syntax().list)) return fail(c);
      in_list_ = in_list_ || c == '[';
      raw_ += c;
      return;
    case Mode::Between:
      raw_ += c;
      if (is_json_space(c)) return;
      if (c == ',') {
        raw_.clear();
        mode_ = Mode::Next;
      } else if (c == ']') {
        raw_.clear();
        in_list_ = false;
        mode_ = syntax().closing.empty() ? Mode::Text : Mode::Closing;
      } else {
        raw_.pop_back();
        fail(c);
      }
  }
}

void ToolCallParser::take_start(char c) {
  const std::string_view prefix = syntax().prefix;
  if (pending_.empty() && is_json_space(c)) {
    space_ += c;
    return;
  }
  if (pending_.empty() && c == '{') {
    open("");
    return take(c);
  }
  pending_ += c;
  if (pending_ == prefix) return open(std::exchange(pending_, ""));
  if (prefix.starts_with(pending_)) return;
  mode_ = Mode::Rest;
  for (const char held : std::exchange(pending_, "")) say(held);
}

void ToolCallParser::take_text(char c) {
  const std::string_view opening = syntax().opening;
  pending_ += c;
  while (!opening.starts_with(pending_)) {
    say(pending_.front());
    pending_.erase(0, 1);
  }
  if (pending_ == opening) open(std::exchange(pending_, ""));
}

void ToolCallParser::open(std::string opening) {
  raw_ = std::exchange(space_, "") + std::move(opening);
  in_list_ = false;
  mode_ = Mode::Opened;
}

void ToolCallParser::say(char c) {
  if (is_json_space(c)) {
    space_ += c;
    return;
  }
  out_.text += std::exchange(space_, "");
  out_.text += c;
}

void ToolCallParser::fail(char c) {
  if (announced_) {
    mode_ = Mode::Broken;
    return take(c);
  }
  mode_ = syntax().many() ? Mode::Text : Mode::Rest;
  for (const char read : std::exchange(raw_, "")) say(read);
  take(c);
}

void ToolCallParser::begin_object() {
  mode_ = Mode::Object;
  scanner_ = {};
  object_.clear();
  name_.clear();
  arguments_.clear();
  announced_ = false;
}

void ToolCallParser::take_object(char c) {
  const auto step = scanner_.push(c);
  if (step == JsonObjectScanner::Step::Bad) return fail(c);
  if (scanner_.in_value()) {
    const std::string& key = scanner_.member();
    if (!is_member_of_call(key)) return fail(c);
    if (key == "name") name_ += c;
    if (is_arguments_key(key)) {
      arguments_ += c;
      if (announced_)
        piece().arguments += c;
      else if (arguments_[0] != '{' || (arguments_.size() == 1 && !name_.empty() && !announce()))
        return fail(c);
    }
  }
  raw_ += c;
  object_ += c;
  if (step != JsonObjectScanner::Step::Done) return;
  if (!end_object()) {
    // All of it was read.
    if (announced_) {
      mode_ = Mode::Broken;
      return;
    }
    raw_.pop_back();
    return fail(c);
  }
  ++whole_;
  announced_ = false;
  raw_.clear();
  if (in_list_)
    mode_ = Mode::Between;
  else if (!syntax().closing.empty())
    mode_ = Mode::Closing;
  else
    mode_ = syntax().many() ? Mode::Text : Mode::Rest;
}

bool ToolCallParser::announce() {
  const auto name = string_in(name_);
  if (!name || !parsing_.names.contains(*name)) return false;
  if (!parsing_.live) return true;
  out_.calls.push_back({.index = said_, .id = parsing_.new_id(said_), .name = *name, .arguments = arguments_});
  ++said_;
  announced_ = true;
  return true;
}

bool ToolCallParser::end_object() {
  // A key may come twice in an object, of which readers take the last: a schema does not forbid it.
  const auto name = string_in(name_);
  if (!name || !parsing_.names.contains(*name) || !arguments_.starts_with('{') || !nlohmann::json::accept(object_) ||
      !nlohmann::json::accept(arguments_))
    return false;
  if (announced_) return true;
  out_.calls.push_back({.index = said_, .id = parsing_.new_id(said_), .name = *name, .arguments = arguments_});
  ++said_;
  return true;
}

ToolCallPiece& ToolCallParser::piece() {
  if (out_.calls.empty() || out_.calls.back().index + 1 != said_)
    out_.calls.push_back({.index = said_ - 1, .id = "", .name = "", .arguments = ""});
  return out_.calls.back();
}

void ToolCallParser::take_closing(char c) {
  if (pending_.empty() && is_json_space(c)) {
    raw_ += c;
    return;
  }
  pending_ += c;
  if (pending_ == syntax().closing) {
    pending_.clear();
    raw_.clear();
    mode_ = Mode::Text;
  } else if (!syntax().closing.starts_with(pending_)) {
    // It is left out; what came in its place is text, or another call.
    mode_ = Mode::Text;
    for (const char held : std::exchange(raw_, "") + std::exchange(pending_, "")) take_text(held);
  }
}

}  // namespace megatron::serve
