#pragma once
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace megatron::families {

// Bounds of what is computed with before the weights are there to be compared with.
constexpr std::int64_t kMaxLayers = 1 << 14, kMaxWidth = 1 << 24, kMaxVocab = std::int64_t{1} << 31;
constexpr std::int64_t kMaxPositions = 1 << 22;  ///< as options have at most

/// The fields of a JSON object, each of which must be asked for: what nobody asked for is unknown. A null counts as
/// absent. Errors are ConfigErrors that name the file and the field.
class JsonFields {
 public:
  /// @param prefix what precedes a field's name in messages: "rope_parameters."
  JsonFields(const nlohmann::json& object, std::string file, std::string prefix = "")
      : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}

  bool has(const std::string& key) const;
  /// A whole number from 1 to `most`; the field must be there unless a default (which may be 0) is given.
  std::int64_t size(const std::string& key, std::int64_t most);
  std::int64_t size(const std::string& key, std::int64_t most, std::int64_t otherwise);
  /// A finite number.
  double number(const std::string& key, double otherwise);
  bool flag(const std::string& key, bool otherwise);
  std::string text(const std::string& key, const std::string& otherwise);
  /// The field as it is; null where it is absent.
  const nlohmann::json& value(const std::string& key);
  /// For a field that may be absent but must not have another value than the one that is computed here.
  void must_be(const std::string& key, const nlohmann::json& expected);
  /// Fields that change no weight and no logit.
  void ignore(std::initializer_list<const char*> keys);
  /// Refuses every field that was not asked for.
  void finish() const;

  [[noreturn]] void refuse(const std::string& key, const std::string& rule) const;
  const std::string& file() const { return file_; }

 private:
  const nlohmann::json& object_;
  std::string file_, prefix_;
  std::set<std::string> known_;
};

}  // namespace megatron::families
