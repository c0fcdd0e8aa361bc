#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/plan/cost/cost_model.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/plan/rules.h"

// Which layout should a model train with on a cluster? Enumerates what the rules allow, and asks the memory plan and
// the cost model of each.
namespace megatron::plan {

/// Tokens of each sequence that a rank has at least in a layout with context parallelism that a search proposes: those
/// of shorter sequences are few enough for one rank.
inline constexpr std::int64_t kLeastSharedTokens = 2048;

/// What a search chooses; everything else is the recipe's.
struct LayoutChoice {
  int tp = 1, pp = 1, vpp = 1;
  std::int64_t micro_batch_size = 1;
  std::string schedule = {};       ///< "" where pp is 1
  std::string recompute = "none";  ///< train.recompute, or fit: train.recompute_layers within limit_gb
  std::string sharding = {};       ///< "": every rank has all optimizer state; else data_parallel_sharding_strategy
  std::string stages = {};         ///< parallel.pp_layout: "" (equal) or "balanced"
  double limit_gb = 0;             ///< train.memory_limit_gb, of recompute fit
  int cp = 1;
  std::string cp_comm_type = {};  ///< the way of name_of(SequenceExchange); "" where cp is 1
  int ep = 1;
  int etp = 0;  ///< parallel.etp: 0 (as tp) or 1

  bool operator==(const LayoutChoice&) const = default;
};

/// The recipe with this layout; sequence parallelism wherever tp is more than 1 and splits the sequence.
config::RunConfig with_layout(config::RunConfig recipe, const LayoutChoice& choice);

/// The options that say so on a command line: "--tp 8 --sp --pp 4 …".
std::string flags_of(const config::RunConfig& recipe, const LayoutChoice& choice);

struct FoundLayout {
  LayoutChoice choice;
  int dp = 1;
  std::int64_t microbatches = 1;
  MemoryPlan memory;                ///< of the rank that holds most
  std::int64_t gathered_bytes = 0;  ///< besides, while a layer computes attention (sequence_exchange.h)
  StepCost cost;
  double tokens_per_s = 0;                      ///< of all ranks
  std::vector<std::int64_t> stage_layers = {};  ///< of each stage, in order
  std::int64_t recomputed = 0;                  ///< layers that are recomputed whole

  std::int64_t held_bytes() const { return memory.total() + gathered_bytes; }
};

struct LayoutSearch {
  std::vector<FoundLayout> layouts = {};    ///< that fit, the fastest first
  std::vector<FoundLayout> too_large = {};  ///< of those that were looked at and do not fit, the smallest first
  /// Combinations that divide ranks, heads, experts and batch. Of those whose states alone do not fit, all ways of
  /// context parallelism and stages count as one.
  std::int64_t allowed = 0;
  std::int64_t evaluated = 0;  ///< of these, by plan and cost model
  /// Whether no other could be among the first `most`: by a bound that leaves out what data-parallel ranks exchange and
  /// the wait for the slowest rank. False where max_evaluated came first.
  bool complete = true;
  /// Where rules are against all that were looked at, as those of the recipe's schedule are: what resolve() says of the
  /// first of them. Else "".
  std::string refused = {};
};

/// The `most` fastest layouts of `recipe` on its parallel.world_size ranks with `capacity_bytes` each: of equal stages
/// where the layers divide, and of stages balanced by cost where these differ; experts split as other weights on every
/// ep that divides them and dp x cp, and whole ones (etp 1) on every ep that divides them and tp x dp x cp; each cp
/// that leaves a rank kLeastSharedTokens of a sequence, with every way of exchange that the heads allow. What the
/// recipe says of all this is replaced, but the micro batch where losses follow from it (fp8.recipe tensorwise).
/// Layouts whose states alone do not fit, or which could be no faster than those found, are not evaluated; at most
/// `max_evaluated` are. Nor are layouts that another one beats whatever the rest: with a micro batch, of several, that
/// shares a divisor with cp (dividing both by it, and multiplying dp, leaves each rank as many tokens, of fewer ranks'
/// sequences), or a way that takes longer than another in both passes and gathers no less. Of those that recompute,
/// also with as few layers as fit. On `threads` threads; the result does not depend on how many. `facts`: as resolve()
/// takes them. The device is the recipe's; of a CPU's ranks memory is that on the hardware's processor. Throws
/// ConfigError where the recipe itself, or the world size, is wrong.
LayoutSearch search_layouts(const config::RunConfig& recipe, const Hardware& hardware, double capacity_bytes,
                            const Facts& facts, int most, int max_evaluated, int threads);

/// Those that no other beats in both tokens/s and held_bytes(), the fastest first.
std::vector<FoundLayout> pareto(std::vector<FoundLayout> layouts);

}  // namespace megatron::plan
