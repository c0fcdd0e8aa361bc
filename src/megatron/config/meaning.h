#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

// What an option means for a run, said where it is declared: `v("rotary_base", rotary_base, "…", "rotary-base",
// Affects::Weights, when("model.position_embedding_type", {"rope"}))`. What a checkpoint must agree with, what a resume
// prints, what has no effect together with other options and what docs/config.md says follow from it.
namespace megatron::config {

/// What becomes another where the option does.
enum class Affects : std::uint8_t {
  Step,     ///< what a step computes, or where: a run may be resumed with another value, and says so
  Weights,  ///< what the weights mean: a checkpoint's value must be the run's
  Samples,  ///< which samples come next: consumed samples of one order are not those of another
  Nothing   ///< neither: where results are written, how they are shown, how ranks are started
};

/// What another option must be.
struct Condition {
  enum class Is : std::uint8_t { On, Off, OneOf, NoneOf };  ///< On: neither false, 0 nor empty
  std::string option;
  Is is = Is::On;
  std::vector<std::string> values = {};

  bool holds(const std::string& value) const;
};

/// An option is read where at least one of these holds; of several When every one must.
struct When {
  std::vector<Condition> any;
};

inline When when(std::string option) { return {{{std::move(option), Condition::Is::On}}}; }
inline When unless(std::string option) { return {{{std::move(option), Condition::Is::Off}}}; }
inline When when(std::string option, std::vector<std::string> values) {
  return {{{std::move(option), Condition::Is::OneOf, std::move(values)}}};
}
inline When unless(std::string option, std::vector<std::string> values) {
  return {{{std::move(option), Condition::Is::NoneOf, std::move(values)}}};
}
inline When operator||(When a, When b) {
  for (Condition& condition : b.any) a.any.push_back(std::move(condition));
  return a;
}

/// `megatron finetune` has it in its recipe, but does not take it.
struct OnlyInTraining {};
/// Ranks may be started with different values: it changes nothing that they compute or exchange.
struct RanksMayDiffer {};
/// Of what affects the weights: it decides how large parameters are and nothing else, so that another value is no other
/// network where their shapes agree.
struct SizesAlone {};

/// All values that a string option, or each element of a list, may have. --help shows them in braces.
struct Choices {
  Choices(std::initializer_list<const char*> all) : values(all.begin(), all.end()) {}
  explicit Choices(std::vector<std::string> all) : values(std::move(all)) {}
  std::vector<std::string> values;
};
/// The job does not run without this option: --help marks it, the job itself refuses.
struct Required {};
/// Among what plain --help shows of a job with many options.
struct Common {};

struct Meaning {
  Affects affects = Affects::Step;
  std::vector<When> where = {};           ///< empty: always read
  std::vector<std::string> choices = {};  ///< empty: any value of the type
  bool only_in_training = false, ranks_may_differ = false, required = false, common = false, sizes_alone = false;

  void add(Affects what) { affects = what; }
  void add(const When& condition) { where.push_back(condition); }
  void add(OnlyInTraining) { only_in_training = true; }
  void add(RanksMayDiffer) { ranks_may_differ = true; }
  void add(const Choices& all) { choices = all.values; }
  void add(Required) { required = true; }
  void add(Common) { common = true; }
  void add(SizesAlone) { sizes_alone = true; }
};

}  // namespace megatron::config
