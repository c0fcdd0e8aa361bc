#include "megatron/train/resume.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/checkpoint/folder.h"
#include "megatron/checkpoint/messages.h"
#include "megatron/checkpoint/weights.h"
#include "megatron/interchange/weights.h"
#include "megatron/train/inputs.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;

/// Tries the checkpoints of a folder until every rank has one whole; every rank takes part in each attempt.
class Attempts {
 public:
  Attempts(const plan::ResolvedRun& run, Engine& engine)
      : run_(run), engine_(engine), messages_(engine.context.world(), engine.context.device()) {}

  Start resume(const fs::path& folder) {
    std::string problems;
    for (const fs::path& candidate : checkpoint::candidates(folder)) {
      Start start{.from = candidate};
      const std::string problem = first_problem(damage_of(candidate, start));
      if (problem.empty()) {
        start.messages.insert(start.messages.begin(), fallen_back_.begin(), fallen_back_.end());
        if (!fallen_back_.empty()) tell(concat("WARNING: falling back to the older checkpoint ", candidate.string()));
        if (!fallen_back_.empty())
          start.messages.insert(start.messages.begin(),
                                concat("WARNING: fell back to the older checkpoint ", candidate.string()));
        round_as_trained(engine_);
        return start;
      }
      fallen_back_.push_back("WARNING: a damaged checkpoint is left out: " + problem);
      tell(fallen_back_.back());
      problems += (problems.empty() ? "" : "\n") + problem;
    }
    throw ConfigError(
        rule_got_fix(concat(folder.string(), ": a run goes on from a whole checkpoint; none is."), problems,
                     "restore one from elsewhere; or begin anew in another folder: --train.out, --checkpoint.save"));
  }

 private:
  /// What is wrong with the candidate, as this rank sees it; empty: it is loaded.
  std::string damage_of(const fs::path& candidate, Start& start) {
    try {
      checkpoint::check_structure(candidate);
      start.messages = check_checkpoint(candidate, run_);
      start.state = load_run(candidate, engine_, !run_.config.checkpoint.no_load_optim, start.messages);
    } catch (const checkpoint::Damage& damage) {
      return damage.what();
    }
    return "";
  }

  /// Of the ranks' problems the first that there is; equal on every rank.
  std::string first_problem(const std::string& own) const {
    const comm::Group& world = engine_.context.world();
    if (world.all_reduce_scalars({own.empty() ? 0.0 : 1.0}, comm::ReduceOp::Max)[0] == 0) return "";
    std::vector<std::string> all = messages_.gather(own);
    if (world.rank() == 0) {
      const std::string first = *std::find_if(all.begin(), all.end(), [](const std::string& p) { return !p.empty(); });
      std::fill(all.begin(), all.end(), first);
    }
    return messages_.scatter(all);
  }

  void tell(const std::string& message) const {
    if (engine_.context.world().rank() == 0) std::fprintf(stderr, "%s\n", message.c_str());
  }

  const plan::ResolvedRun& run_;
  Engine& engine_;
  checkpoint::Messages messages_;
  std::vector<std::string> fallen_back_;
};

Start begin_with_weights(const plan::ResolvedRun& run, Engine& engine, const fs::path& folder) {
  const auto source = interchange::open_weights(folder);
  const auto report = load_weights(*source, engine, run.shape, run.config.checkpoint.load_strict);
  Start start{.from = folder, .weights_only = true};
  for (const std::string& line : report.lines()) start.messages.push_back("warning: " + line);
  return start;
}

}  // namespace

Start start_run(const plan::ResolvedRun& run, Engine& engine) {
  const auto folder = checkpoint_to_load(run.config);
  Start start;
  if (folder && takes_weights_alone(run.config))
    start = begin_with_weights(run, engine, *folder);
  else if (folder)
    start = Attempts(run, engine).resume(*folder);
  engine.shared.check_copies();
  return start;
}

}  // namespace megatron::train
