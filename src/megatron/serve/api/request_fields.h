#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

// What a request's JSON has under its names, each found fault with by its path: "tools[0].function.name".
namespace megatron::serve {

/// Throws ApiError 400: the field `name` is wrong; `what` follows its name ("must be …").
[[noreturn]] void refuse_field(const std::string& name, const std::string& what);

/// "a number", "null", "a JSON string", for messages.
std::string json_kind(const nlohmann::json& value);

/// Throws ApiError 400, which names the field `name`, where an object of the value has more keys than may be read in
/// the order in which they are written (parse_ordered_json()).
void check_json_keys(const std::string& name, const nlohmann::json& whole);

/// The fields of one object. A null is as if it were not there. Names that nobody has asked for are refused at the end.
/// Members throw ApiError 400, the constructor too where `object` is none.
class RequestFields {
 public:
  /// `prefix`: the object's own path, "" of the whole body. `object` must outlive this.
  RequestFields(const nlohmann::json& object, std::string prefix);

  /// The path of a field.
  std::string name_of(const std::string& name) const { return prefix_.empty() ? name : prefix_ + "." + name; }

  /// Null where it is missing.
  const nlohmann::json* find(const char* name);
  const nlohmann::json& need(const char* name);
  std::optional<std::int64_t> integer(const char* name, std::int64_t least, std::int64_t most);
  double number(const char* name, double least, double most, double otherwise);
  bool boolean(const char* name, bool otherwise);
  std::string text(const char* name, const std::string& otherwise);

  /// A field that is known and not served: as if it were not there, or as `harmless`. `instead`: what to use, or "".
  void unserved(const char* name, const nlohmann::json& harmless = nullptr, const std::string& instead = "");
  void refuse_others() const;

 private:
  const nlohmann::json& object_;
  std::string prefix_;
  std::set<std::string> known_;
};

/// A number at `name` within bounds.
double number_at(const std::string& name, const nlohmann::json& value, double least, double most);

}  // namespace megatron::serve
