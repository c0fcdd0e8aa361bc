#pragma once
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

// The one reader of JSON that is held as a value: configurations, indices, headers, messages. Records of which there
// are millions (corpora, samples, tasks) are read by simdjson, where they lie.
namespace megatron {

/// What is wrong with a JSON text: "something that is not JSON at byte 12", "the key \"a\" twice in one object" or
/// "values nested deeper than 64 levels".
struct JsonError : std::runtime_error {
  JsonError(const std::string& what, std::size_t at, std::string why)
      : std::runtime_error(what), byte(at), detail(std::move(why)) {}
  std::size_t byte;    ///< from 0, where the text ceases to be JSON; of other faults 0
  std::string detail;  ///< why it is not JSON; else ""
};

/// What follows parsing may use the stack for each level.
constexpr std::size_t kMaxJsonDepth = 64;

enum class RepeatedKeys : std::uint8_t { Refused, LastCounts };

/// The value that `text` says, in time linear in it. Throws JsonError where it is not JSON in UTF-8, where an object
/// has a key twice, the second of which would hide the first, unless `repeated` takes it, or where objects and arrays
/// are nested deeper than `max_depth`.
nlohmann::json parse_json(std::string_view text, std::size_t max_depth = kMaxJsonDepth,
                          RepeatedKeys repeated = RepeatedKeys::Refused);

/// parse_json(); nothing where that throws.
std::optional<nlohmann::json> try_parse_json(std::string_view text);

}  // namespace megatron
