#include "app/layouts.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "app/config_file.h"
#include "app/flags.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/progress.h"
#include "megatron/recipe/resolve.h"
#include "megatron/text/tokenizer.h"

namespace megatron::app {
namespace {

constexpr int kMaxEvaluated = 600, kMinLayouts = 10;

plan::Facts facts_of(const config::RunConfig& recipe, const std::optional<plan::TeacherNetwork>& teacher) {
  plan::Facts facts{.teacher = teacher ? teacher : recipe::read_teacher(recipe.distill.teacher)};
  if (recipe.data.tokenizer.empty()) return facts;
  const config::DataConfig& data = recipe.data;
  const auto tokenizer = text::Tokenizer::load(data.tokenizer, data.tokenizer_type, data.vocab_extra_ids);
  facts.tokenizer_vocab = recipe::needed_rows(tokenizer, recipe.model);
  return facts;
}

/// By number: the products of a number in `reached` and one of 1 … `most` that divides `of` (0: all do).
std::vector<bool> times_divisors(const std::vector<bool>& reached, std::int64_t of, std::int64_t most) {
  std::vector<bool> products(reached.size(), false);
  const std::int64_t size = std::ssize(reached);
  for (std::int64_t number = 1; number < size; ++number)
    for (std::int64_t d = 1; reached[static_cast<std::size_t>(number)] && d <= most && number * d < size; ++d)
      if (of % d == 0) products[static_cast<std::size_t>(number * d)] = true;
  return products;
}

/// The largest number of ranks below that of `recipe` that some layout divides.
int fewer_ranks(config::RunConfig recipe, const RanksMachine& machine, const plan::Facts& facts) {
  constexpr int kMaxRanks = 1 << 20;
  const int ranks = std::min(recipe.parallel.world_size, kMaxRanks);
  const config::ModelConfig& model = recipe.model;
  // A superset of the products tp * cp * pp * dp that a search tries: which of them are allowed it says itself, below.
  std::vector<bool> products(static_cast<std::size_t>(ranks), false);
  products[1] = true;
  products = times_divisors(products, recipe.train.global_batch_size, ranks);
  products = times_divisors(products, model.num_attention_heads, ranks);
  products = times_divisors(products, 0, std::max<std::int64_t>(1, recipe.data.seq_length / plan::kLeastSharedTokens));
  products = times_divisors(products, 0, model.num_layers + std::max(model.num_layers, model.decoder_num_layers));
  for (int fewer = ranks - 1; fewer > 1; --fewer) {
    if (!products[static_cast<std::size_t>(fewer)]) continue;
    recipe.parallel.world_size = fewer;
    if (plan::search_layouts(recipe, machine.hardware, machine.capacity_bytes, facts, 1, 0, 1).allowed > 0)
      return fewer;
  }
  return 1;
}

}  // namespace

RanksMachine machine_of(const std::string& hardware, const std::string& fit) {
  const std::string file = config_file(hardware, "configs/hardware", "--hardware");
  RanksMachine machine{plan::parse_hardware(read_file(file, std::uint64_t{1} << 20), file)};
  machine.capacity_bytes = fit.empty() ? machine.hardware.memory.capacity_bytes() : bytes_of("--fit", fit);
  return machine;
}

int nodes_of(int ranks, const plan::Hardware& hardware) {
  return (ranks + hardware.ranks_per_node - 1) / hardware.ranks_per_node;
}

plan::LayoutSearch find_layouts(const config::RunConfig& recipe, const RanksMachine& machine, int threads, int most,
                                const std::optional<plan::TeacherNetwork>& teacher) {
  const int ranks = recipe.parallel.world_size == 0 ? 1 : recipe.parallel.world_size;
  if (ranks < 0)
    throw ConfigError(rule_got_fix("parallel.world_size must be a number of ranks.", concat(ranks), "--world-size 8"));
  const plan::Facts facts = facts_of(recipe, teacher);
  plan::Hardware hardware = machine.hardware;
  if (const int nodes = nodes_of(ranks, hardware); ranks % nodes == 0) hardware.ranks_per_node = ranks / nodes;
  plan::LayoutSearch found = plan::search_layouts(recipe, hardware, machine.capacity_bytes, facts,
                                                  std::max(most, kMinLayouts), kMaxEvaluated, threads);
  if (found.allowed == 0 && ranks > 1)
    throw ConfigError(
        rule_got_fix("The ranks must divide into tp (of attention heads and MLP width, within a node), cp, pp (at most "
                     "the layers) and "
                     "dp, of which the global batch is a multiple.",
                     concat(ranks, " ranks, ", recipe.model.num_layers, " layers, ", recipe.model.num_attention_heads,
                            " heads, a global batch of ", recipe.train.global_batch_size),
                     concat("--world-size ", fewer_ranks(recipe, machine, facts))));
  if (!found.refused.empty()) throw ConfigError(found.refused);
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
