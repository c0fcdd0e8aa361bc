#include "megatron/base/files/outputs.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/text/printable.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

struct OutputPath {
  explicit OutputPath(std::string given) : name(std::move(given)) {
    std::error_code none;
    const fs::path whole = fs::absolute(name, none);
    path = fs::weakly_canonical(whole, none);
    if (none) path = whole.lexically_normal();  // links in a circle, a folder that may not be read
  }
  bool operator==(const OutputPath& other) const {
    std::error_code none;  // a file that is not there is told by its name alone
    return path == other.path || fs::equivalent(path, other.path, none);
  }
  std::string name;
  fs::path path;
};

}  // namespace

void check_outputs(const std::vector<std::string>& outputs, const std::vector<std::string>& inputs) {
  std::vector<OutputPath> places;
  for (const std::string& input : inputs)
    if (!input.empty() && input != "-") places.emplace_back(input);
  const std::size_t num_inputs = places.size();
  for (const std::string& output : outputs) {
    if (output.empty()) continue;
    if (output == "-")
      throw ConfigError(rule_got_fix("an output must be a file, which is there whole or not at all.",
                                     "-, standard output", "name a file"));
    check_replaceable(output);
    const OutputPath place(output);
    for (std::size_t i = 0; i < places.size(); ++i)
      if (place == places[i])
        throw ConfigError(rule_got_fix(
            i < num_inputs ? "an output must not be one of the inputs." : "each output must be a file of its own.",
            place.name == places[i].name ? place.name + " twice" : place.name + " and " + places[i].name,
            "name another file"));
    places.push_back(place);
  }
}

void check_file_name_part(const std::string& whose, const std::string& part, const std::string& fix) {
  constexpr std::size_t kMaxPartBytes = 128;
  if (!part.empty() && part.size() <= kMaxPartBytes && part.find('/') == std::string::npos && printable(part) == part)
    return;
  throw ConfigError(rule_got_fix(
      concat(whose, " is part of a file's name: 1 to ", kMaxPartBytes, " bytes of visible UTF-8 without '/'."),
      in_quotes(part), fix));
}

}  // namespace megatron
