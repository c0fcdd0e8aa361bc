#include "app/layouts.h"

#include <algorithm>

#include "app/config_file.h"
#include "app/flags.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/progress.h"
#include "megatron/text/tokenizer.h"

namespace megatron::app {
namespace {

constexpr int kMaxEvaluated = 600, kMinLayouts = 10;

plan::Facts facts_of(const config::RunConfig& recipe) {
  if (recipe.data.tokenizer.empty()) return {};
  const config::DataConfig& data = recipe.data;
  return {.tokenizer_vocab =
              text::Tokenizer::load(data.tokenizer, data.tokenizer_type, data.vocab_extra_ids).vocab_size()};
}

}  // namespace

RanksMachine machine_of(const std::string& hardware, const std::string& fit) {
  const std::string file = config_file(hardware, "configs/hardware", "--hardware");
  RanksMachine machine{plan::parse_hardware(read_file(file, std::uint64_t{1} << 20), file)};
  machine.capacity_bytes = fit.empty() ? machine.hardware.memory.capacity_bytes() : bytes_of("--fit", fit);
  return machine;
}

plan::LayoutSearch find_layouts(const config::RunConfig& recipe, const RanksMachine& machine, int threads, int most) {
  plan::LayoutSearch found = plan::search_layouts(recipe, machine.hardware, machine.capacity_bytes, facts_of(recipe),
                                                  std::max(most, kMinLayouts), kMaxEvaluated, threads);
  if (found.layouts.empty())
    throw ConfigError(rule_got_fix(
        concat("No layout of the ranks fits into ", human_bytes(machine.capacity_bytes), " per rank."),
        found.too_large.empty()
            ? "weights, gradients and the optimizer's state alone are more"
            : concat("the smallest holds ", human_bytes(static_cast<double>(found.too_large[0].held_bytes())), ": ",
                     plan::flags_of(recipe, found.too_large[0].choice)),
        "more ranks (--world-size), or ranks with more memory (--fit)"));
  return found;
}

}  // namespace megatron::app
