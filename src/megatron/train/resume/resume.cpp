#include "megatron/train/resume/resume.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <memory>
#include <optional>
#include <ranges>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/save/messages.h"
#include "megatron/checkpoint/weights.h"
#include "megatron/interchange/formats.h"
#include "megatron/interchange/hugging_face/labels.h"
#include "megatron/interchange/weights.h"
#include "megatron/plan/parameters/adapters.h"
#include "megatron/train/inputs.h"
#include "megatron/train/resume/chosen_iteration.h"
#include "megatron/train/resume/magnitudes.h"
#include "megatron/train/resume/memory_copies.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;

enum class Trouble : std::uint8_t { None, Newer, Damaged, Unfit, Failed };  // the worst last

/// What came of a piece of work.
struct Finding {
  Trouble trouble = Trouble::None;
  std::string text = {};
};

template <class Work>
Finding attempt(Work work) {
  try {
    work();
  } catch (const checkpoint::NewerVersion& e) {
    return {Trouble::Newer, e.what()};
  } catch (const checkpoint::Damage& e) {
    return {Trouble::Damaged, e.what()};
  } catch (const ConfigError& e) {
    return {Trouble::Unfit, e.what()};
  } catch (const std::exception& e) {
    return {Trouble::Failed, e.what()};
  }
  return {};
}

/// Where the run starts, as rank 0 sees it. The others do not look: what they see may be older, or another disk's.
struct Decision {
  enum class Kind : char { New = 'n', Weights = 'w', Checkpoint = 'c' };
  Kind kind = Kind::New;
  std::string folder = {};                   ///< as the user named it
  std::vector<std::string> candidates = {};  ///< best first; of weights: where they lie

  std::string to_text() const {
    std::string text(1, static_cast<char>(kind));
    text += folder;
    for (const std::string& candidate : candidates) text += '\0' + candidate;
    return text;
  }
  static Decision of_text(std::string_view text) {
    Decision decision{.kind = static_cast<Kind>(text.at(0))};
    std::size_t begin = 1;
    for (std::size_t end = text.find('\0', begin);; begin = end + 1, end = text.find('\0', begin)) {
      const std::string part(text.substr(begin, end == std::string_view::npos ? end : end - begin));
      if (begin == 1)
        decision.folder = part;
      else
        decision.candidates.push_back(part);
      if (end == std::string_view::npos) return decision;
    }
  }
};

constexpr char kInMemory = '\x01';  // begins what stands for an iteration in memory among the candidates

/// The iteration in memory that a candidate stands for; nothing for a folder.
std::optional<std::int64_t> iteration_in_memory(const std::string& candidate) {
  if (!candidate.starts_with(kInMemory)) return std::nullopt;
  return std::stoll(candidate.substr(1));
}

/// The iteration that the name of a run's checkpoint says, or -1.
std::int64_t iteration_on_disk(const std::string& candidate) {
  constexpr std::string_view kPrefix = "iter_", kAside = ".old-";
  std::string name = fs::path(candidate).filename();
  if (name.starts_with(kAside)) name.erase(0, kAside.size());
  std::int64_t iteration = -1;
  if (name.starts_with(kPrefix)) std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), iteration);
  return iteration;
}

/// `decision` with iterations in memory, the newest first: they are the run's own, and the newest of all comes first.
/// What the run would begin with, had it no checkpoints, then no longer counts.
Decision with_memory(Decision decision, const std::vector<std::int64_t>& iterations, bool has_own) {
  if (iterations.empty()) return decision;
  if (!has_own) decision = {.kind = Decision::Kind::Checkpoint, .folder = "the memory of nodes", .candidates = {}};
  auto next = decision.candidates.begin();
  for (const std::int64_t iteration : iterations) {
    next = std::find_if(next, decision.candidates.end(),
                        [&](const std::string& candidate) { return iteration_on_disk(candidate) < iteration; });
    next = decision.candidates.insert(next, kInMemory + std::to_string(iteration)) + 1;
  }
  return decision;
}

Decision decide(const config::RunConfig& config) {
  const auto folder = checkpoint_to_load(config);
  if (!folder) return {};
  Decision decision{.kind = Decision::Kind::Checkpoint, .folder = folder->string()};
  if (takes_weights_alone(config)) {
    const bool native = interchange::format_of(*folder).native;
    decision.kind = Decision::Kind::Weights;
    decision.candidates = {native ? checkpoint::find_checkpoint(*folder).string() : decision.folder};
  } else if (resumes_foreign_run(config)) {
    decision.candidates = {decision.folder};
  } else {
    for (const fs::path& candidate : checkpoint::candidates(*folder)) decision.candidates.push_back(candidate.string());
  }
  return decision;
}

/// Of a folder of another program: its files. Of a checkpoint: its manifest.
std::string view_of(const fs::path& folder) {
  if (!fs::is_directory(folder) || fs::exists(folder / "manifest.json")) return checkpoint::fingerprint(folder);
  std::uint64_t files = 0, bytes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (!entry.is_regular_file() || entry.path().filename().string().starts_with('.')) continue;
    ++files;
    bytes += entry.file_size();
  }
  return concat(files, " files of ", bytes, " bytes, no manifest");
}

/// Begins the run on every rank alike: rank 0 decides from what, and each attempt is everyone's or nobody's.
class Attempts {
 public:
  Attempts(const plan::ResolvedRun& run, Engine& engine, MemoryCopies* memory)
      : run_(run), engine_(engine), memory_(memory), messages_(engine.context.world(), engine.context.device()) {}

  Start start() {
    load_base();
    const Decision decision = decision_of_rank_0();
    if (decision.kind == Decision::Kind::Weights) return begin_with_weights(decision);
    if (decision.kind == Decision::Kind::Checkpoint) return resume(decision);
    throw_if_any(agree(attempt([&] {
      if (const auto folder = checkpoint_to_load(run_.config)) fail_for_view(*folder, "a checkpoint", "nothing");
    })));
    return {};
  }

 private:
  Decision decision_of_rank_0() const {
    Decision decision;
    throw_if_any(agree(attempt([&] {
      if (rank() != 0) return;
      decision = decide(run_.config);
      if (memory_ != nullptr) decision = with_own_memory(std::move(decision));
    })));
    return Decision::of_text(from_rank_0(decision.to_text()));
  }

  /// Where the run leaves its checkpoints on the disk, for an iteration of its choice or for another number, those in
  /// memory that it has saved since, and this node has, come first, whatever their numbers; going back, those from
  /// before do not count.
  Decision with_own_memory(Decision decision) const {
    const bool has_own = has_own_checkpoint(run_.config),
               goes_back = own_checkpoint_to_go_back_to(run_.config).has_value();
    std::vector<std::int64_t> before = memory_->iterations(), since;
    if (goes_back || (has_own && renumbers_newest(decision.candidates))) {
      const auto is_since = [&](std::int64_t iteration) {
        return starts_alike(run_.config, memory_->place(iteration));
      };
      std::ranges::copy_if(before, std::back_inserter(since), is_since);
      std::erase_if(before, is_since);
    }
    if (!goes_back) decision = with_memory(std::move(decision), before, has_own);
    for (const std::int64_t iteration : since | std::views::reverse)
      decision.candidates.insert(decision.candidates.begin(), kInMemory + std::to_string(iteration));
    return decision;
  }

  bool renumbers_newest(const std::vector<std::string>& candidates) const {
    for (const std::string& candidate : candidates) {
      try {
        return renumbers(run_.config, candidate, /*is_own=*/true);
      } catch (const std::exception&) {  // damaged: the run would resume from the one before
      }
    }
    return false;
  }

  /// The weights that adapters are trained on, and the magnitudes that begin as theirs: of weights that were drawn the
  /// engine has set them.
  void load_base() const {
    if (!run_.shape.lora || run_.config.lora.base.empty()) return;
    throw_if_any(agree(attempt_in(run_.config.lora.base, [&](const fs::path& folder) {
      checkpoint::load_weights(*interchange::open_weights(folder), *engine_.parameters.frozen(),
                               plan::without_adapters(run_.shape));
    })));
    engine_.gatherer.forget();
    set_magnitudes(run_, engine_);
  }

  Start begin_with_weights(const Decision& decision) const {
    Start start{.from = decision.folder, .weights_only = true};
    throw_if_any(agree(attempt_in(decision.candidates.at(0), [&](const fs::path& folder) {
      std::shared_ptr<const checkpoint::WeightSource> source;
      if (run_.shape.lora)
        source = adapters_to_begin_with(folder, run_).matrices;
      else
        source = interchange::open_weights_for(folder, run_.config.model);
      const auto report = load_weights(*source, engine_, run_.shape, run_.config.checkpoint.load_strict);
      for (const std::string& line : report.lines()) start.messages.push_back("warning: " + line);
    })));
    return start;
  }

  Start resume(const Decision& decision) {
    std::string problems;
    for (const std::string& named : decision.candidates) {
      const auto in_memory = iteration_in_memory(named);
      const fs::path candidate = in_memory ? memory_->place(*in_memory) : fs::path(named);
      Start start{.from = candidate, .in_memory = in_memory.has_value()};
      const Finding found = in_memory
                                ? load_from_memory(*in_memory, start)
                                : agree(attempt_in(candidate, [&](const fs::path& folder) { load(folder, start); }));
      if (found.trouble == Trouble::None) {
        start.messages.insert(start.messages.begin(), fallen_back_.begin(), fallen_back_.end());
        if (!fallen_back_.empty()) tell(concat("WARNING: falling back to another checkpoint, ", candidate.string()));
        if (!fallen_back_.empty())
          start.messages.insert(start.messages.begin(),
                                concat("WARNING: fell back to another checkpoint, ", candidate.string()));
        round_as_trained(engine_);
        if (!in_memory) keep_mark(candidate, false, "");
        if (!in_memory && rank() == 0 && is_own(candidate)) checkpoint::mend_latest(candidate);
        return start;
      }
      if (in_memory) {  // whatever it is: the next may do, and is the user's to mend
        fallen_back_.push_back(concat("WARNING: a checkpoint in memory is left out: ", found.text));
        tell(fallen_back_.back());
        problems += (problems.empty() ? "" : "\n") + found.text;
        continue;
      }
      if (found.trouble > Trouble::Damaged) throw_if_any(found);
      const bool damaged = found.trouble == Trouble::Damaged;
      if (damaged) keep_mark(candidate, true, found.text);
      fallen_back_.push_back(concat("WARNING: a ", damaged ? "damaged checkpoint" : "checkpoint of a newer version",
                                    " is left out: ", found.text));
      tell(fallen_back_.back());
      problems += (problems.empty() ? "" : "\n") + found.text;
    }
    const bool only_memory =
        !decision.candidates.empty() && std::ranges::all_of(decision.candidates, [](const std::string& candidate) {
          return iteration_in_memory(candidate).has_value();
        });
    throw ConfigError(rule_got_fix(
        concat(decision.folder, ": a run resumes from a whole checkpoint of this version; none is."), problems,
        only_memory ? concat("start anew: rm -r ", memory_->place(0).parent_path().string(), " on each node")
                    : "restore one from elsewhere; or start over in another folder: --train.out, --checkpoint.save"));
  }

  /// Loads what nodes keep of an iteration. Collective.
  Finding load_from_memory(std::int64_t iteration, Start& start) const {
    fs::path folder;
    Finding found = agree(attempt([&] { folder = memory_->open(iteration); }));
    if (found.trouble == Trouble::None)
      found = agree(attempt_in(folder, [&](const fs::path& opened) {
        checkpoint::check_structure(opened);
        start.messages = check_checkpoint(opened, run_);
        start.state = load_run(opened, engine_, /*with_optimizer=*/true, start.messages);
        if (renumbers(run_.config, opened, /*is_own=*/true)) renumber(start);
        tell_of_chosen(opened, start);
      }));
    memory_->close();
    const auto fetched = static_cast<double>(memory_->fetched_bytes());
    if (fetched > 0) start.messages.push_back(human_bytes(fetched) + " of it came from the memory of other nodes");
    return found;
  }

  /// Rank 0 notes what came of loading one of the run's own checkpoints; folders of others it only reads. The ranks
  /// together may not have needed all of a checkpoint: only verify() takes a mark away.
  void keep_mark(const fs::path& candidate, bool damaged, const std::string& problem) const {
    if (rank() != 0 || !is_own(candidate)) return;
    if (damaged)
      checkpoint::mark_damaged(candidate, problem);
    else if (checkpoint::is_marked_damaged(candidate) && checkpoint::verify(candidate).empty())
      checkpoint::remove_mark(candidate);
  }

  /// Whether the run itself has saved it: then a command that begins from elsewhere has been called again.
  bool is_own(const fs::path& candidate) const {
    if (resumes_foreign_run(run_.config)) return false;
    std::error_code ignored;
    return fs::equivalent(candidate.parent_path(), save_folder(run_.config), ignored);
  }

  void load(const fs::path& candidate, Start& start) const {
    if (resumes_foreign_run(run_.config)) {
      const interchange::TrainingState training = foreign_run(run_.config);
      const bool with_optimizer = !run_.config.checkpoint.no_load_optim;
      start.messages = check_checkpoint(training, candidate, run_);
      start.state = load_run(training, candidate, engine_, with_optimizer, start.messages);
      if (run_.config.checkpoint.override_ckpt_iteration >= 0) renumber(start);
      return;
    }
    checkpoint::check_structure(candidate);
    start.messages = check_checkpoint(candidate, run_);
    const bool fresh = run_.config.checkpoint.no_load_optim && !is_own(candidate);
    start.state = load_run(candidate, engine_, !fresh, start.messages);
    if (renumbers(run_.config, candidate, is_own(candidate))) renumber(start);
    tell_of_chosen(candidate, start);
  }

  void tell_of_chosen(const fs::path& checkpoint, Start& start) const {
    const std::string note = note_of_chosen_iteration(run_.config, checkpoint);
    if (!note.empty()) start.messages.push_back(note);
  }

  /// As Megatron-LM does: samples of whole batches, none of them skipped; the learning rate stays where it was.
  void renumber(Start& start) const {
    RunState& state = start.state;
    const std::int64_t before = state.iteration;
    state.iteration = run_.config.checkpoint.override_ckpt_iteration;
    state.consumed_samples = state.iteration * run_.config.train.global_batch_size;
    state.skipped_iterations = state.nonfinite_steps = 0;
    state.skipped_batches = {};
    state.renumbered = true;
    state.validated_iteration = std::min(state.validated_iteration, state.iteration);
    start.messages.push_back(concat("checkpoint.override_ckpt_iteration: iteration ", before, " counts as ",
                                    state.iteration, ", and sample ", state.consumed_samples, " is the next"));
  }

  /// `work` on a folder that this rank sees as rank 0 does. Collective.
  template <class Work>
  Finding attempt_in(const fs::path& folder, Work work) const {
    std::string own;
    const Finding looked = attempt([&] { own = view_of(folder); });
    const std::string theirs = from_rank_0(own);
    if (looked.trouble != Trouble::None) return looked;
    return attempt([&] {
      if (own != theirs) fail_for_view(folder, own, theirs);
      work(folder);
    });
  }

  [[noreturn]] void fail_for_view(const fs::path& folder, const std::string& own, const std::string& theirs) const {
    throw ConfigError(rule_got_fix(
        concat("All ranks must see one file system, with the same checkpoint in ", folder.string(), "."),
        concat("rank ", rank(), ": ", own, "; rank 0: ", theirs), "name a folder that all machines share"));
  }

  /// The worst that any rank has found, the first rank's; equal on every rank.
  Finding agree(const Finding& own) const {
    const auto number = static_cast<double>(own.trouble);
    const double worst = engine_.context.world().all_reduce_scalars({number}, comm::ReduceOp::Max)[0];
    if (worst == 0) return {};
    std::vector<std::string> all = messages_.gather(number == worst ? "!" + own.text : "");
    if (rank() == 0) {
      const std::string first = *std::find_if(all.begin(), all.end(), [](const std::string& p) { return !p.empty(); });
      std::fill(all.begin(), all.end(), first.substr(1));
    }
    return {static_cast<Trouble>(static_cast<int>(worst)), messages_.scatter(all)};
  }

  static void throw_if_any(const Finding& found) {
    if (found.trouble == Trouble::Failed) throw std::runtime_error(found.text);
    if (found.trouble != Trouble::None) throw ConfigError(found.text);
  }

  std::string from_rank_0(const std::string& text) const {
    return messages_.scatter(
        std::vector<std::string>(rank() == 0 ? static_cast<std::size_t>(engine_.context.world().size()) : 0, text));
  }

  int rank() const { return engine_.context.world().rank(); }

  void tell(const std::string& message) const {
    if (rank() == 0) write_line(stderr, message);
  }

  const plan::ResolvedRun& run_;
  Engine& engine_;
  MemoryCopies* memory_;
  checkpoint::Messages messages_;
  std::vector<std::string> fallen_back_;
};

}  // namespace

Start start_run(const plan::ResolvedRun& run, Engine& engine, MemoryCopies* memory) {
  Start start = Attempts(run, engine, memory).start();
  if (memory != nullptr && !start.in_memory) memory->clear();
  if (memory != nullptr) memory->remove_others();
  engine.shared.check_copies();
  return start;
}

}  // namespace megatron::train
