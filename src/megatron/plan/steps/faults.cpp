#include "megatron/plan/steps/faults.h"

#include <charconv>
#include <optional>

#include "megatron/base/error.h"

namespace megatron::plan {
namespace {

std::optional<Fault::Kind> kind_named(const std::string& name) {
  if (name == "nan") return Fault::Kind::Nan;
  if (name == "spike") return Fault::Kind::Spike;
  if (name == "exit") return Fault::Kind::Exit;
  if (name == "hang") return Fault::Kind::Hang;
  if (name == "flip") return Fault::Kind::Flip;
  if (name == "stuck") return Fault::Kind::Stuck;
  return std::nullopt;
}

template <class T>
bool reads(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

std::optional<Fault> fault_of(const std::string& text) {
  constexpr std::int64_t kMaxIteration = 1'000'000'000;
  constexpr int kMaxRank = 1 << 15;
  const std::size_t first = text.find(':');
  if (first == std::string::npos) return std::nullopt;
  const std::size_t second = text.find(':', first + 1);
  const auto kind = kind_named(text.substr(0, first));
  if (!kind) return std::nullopt;
  Fault fault{.kind = *kind};
  const std::size_t digits = second == std::string::npos ? second : second - first - 1;
  if (!reads(text.substr(first + 1, digits), fault.iteration) || fault.iteration < 1 || fault.iteration > kMaxIteration)
    return std::nullopt;
  const bool of_rank = fault.kind != Fault::Kind::Nan && fault.kind != Fault::Kind::Spike;
  if (second == std::string::npos) return fault;
  if (!of_rank || !reads(text.substr(second + 1), fault.rank) || fault.rank < 0 || fault.rank >= kMaxRank)
    return std::nullopt;
  return fault;
}

}  // namespace

std::vector<Fault> faults_of(const std::vector<std::string>& texts) {
  std::vector<Fault> faults;
  for (const std::string& text : texts) {
    const auto fault = fault_of(text);
    if (!fault)
      throw ConfigError(
          rule_got_fix("guard.inject_faults takes nan:ITERATION, spike:ITERATION, and exit, hang, flip and stuck, as "
                       "exit:ITERATION:RANK.",
                       text, "--guard.inject_faults nan:7"));
    faults.push_back(*fault);
  }
  return faults;
}

}  // namespace megatron::plan
