#include "megatron/base/text/json.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/text/ordered_json.h"
#include "megatron/base/text/printable.h"

namespace megatron {
namespace {

using nlohmann::json;

/// Builds the value itself: with a callback, the library's parser searches each object that ends among all that its
/// parent has so far, so that 100,000 objects in an array take minutes; and what it says of faults comes too late.
class Builder : public nlohmann::json_sax<json> {
 public:
  Builder(std::size_t max_depth, RepeatedKeys repeated) : max_depth_(max_depth), repeated_(repeated) {}

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t&) override { return put(value); }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // JSON has none
  bool start_object(std::size_t) override { return open(json::object()); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& key) override {
    const auto [member, is_new] = open_.back()->get_ref<json::object_t&>().try_emplace(key);
    if (!is_new && repeated_ == RepeatedKeys::Refused)
      throw JsonError(concat("the key \"", printable(key), "\" twice in one object"), 0, "");
    member_ = &member->second;
    return true;
  }
  bool parse_error(std::size_t bytes, const std::string&, const json::exception& error) override {
    const std::string_view what = error.what();
    const std::size_t detail = what.find("] ");
    const std::size_t at = bytes == 0 ? 0 : bytes - 1;
    throw JsonError(concat("something that is not JSON at byte ", at), at,
                    printable(detail == std::string_view::npos ? what : what.substr(detail + 2)));
  }

  json take() { return std::move(root_); }

 private:
  template <class Value>
  bool put(Value&& value) {
    place(json(std::forward<Value>(value)));
    return true;
  }
  json& place(json value) {
    if (open_.empty()) return root_ = std::move(value);
    if (!open_.back()->is_array()) return *member_ = std::move(value);
    auto& elements = open_.back()->get_ref<json::array_t&>();
    elements.push_back(std::move(value));
    return elements.back();
  }
  bool open(json container) {
    if (open_.size() == max_depth_) throw JsonError(concat("values nested deeper than ", max_depth_, " levels"), 0, "");
    json& placed = place(std::move(container));
    open_.push_back(&placed);  // stays where it is: what contains it gets no other element before it is closed
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::size_t max_depth_;
  RepeatedKeys repeated_;
  json root_;
  json* member_ = nullptr;  // the value of the key that came last
  std::vector<json*> open_;
};

}  // namespace

json parse_json(std::string_view text, std::size_t max_depth, RepeatedKeys repeated) {
  Builder builder(max_depth, repeated);
  json::sax_parse(text, &builder);
  return builder.take();
}

nlohmann::ordered_json parse_ordered_json(std::string_view text) { return nlohmann::ordered_json::parse(text); }

std::optional<json> try_parse_json(std::string_view text) {
  try {
    return parse_json(text);
  } catch (const JsonError&) {
    return std::nullopt;
  }
}

}  // namespace megatron
