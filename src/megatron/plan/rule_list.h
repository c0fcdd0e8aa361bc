#pragma once
#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/text/nearest.h"
#include "megatron/config/options.h"
#include "megatron/config/run_config.h"
#include "megatron/config/value.h"

// What the rules over the options are made of (rules.h).
namespace megatron::plan {

struct ModelShape;  // parameters/parameters.h

// Bounds that keep every product of sizes below 2^63; far beyond what can be trained.
inline constexpr std::int64_t kMaxLayers = 1 << 12, kMaxWidth = 1 << 16, kMaxFfn = 1 << 18, kMaxVocab = 1 << 24;
inline constexpr std::int64_t kMaxMicrobatchesAhead = 4096, kMaxPositions = 1 << 22, kMaxMicrobatchTokens = 1 << 28,
                              kMaxBatch = 1 << 30;
inline constexpr std::int64_t kMaxExperts = 1 << 12, kMaxHeadOfLatents = 1 << 13, kMaxRowOfLatents = 1 << 18;
inline constexpr int kMaxStages = 1 << 10, kMaxGroup = 1 << 20, kMaxRanks = 1 << 15;
inline constexpr std::int64_t kMaxSteps = 1'000'000'000, kMaxSamples = std::int64_t{1} << 48;

/// Gathers violations, so that the user sees all of them at once.
class Rules {
 public:
  Rules() = default;
  Rules(const Rules&) = delete;
  Rules& operator=(const Rules&) = delete;

  void require(bool ok, const std::string& rule, const std::string& got, const std::string& fix = "") {
    if (!ok) add(rule_got_fix(rule, got, fix));
  }
  /// A rule that one option breaks by itself: its default is a fix.
  void option(const char* option, bool ok, const std::string& rule, const std::string& got) {
    if (!ok) add(rule_got_fix(concat(option, " ", rule), got, default_of(option)));
  }
  template <class T>
  void range(const char* name, T value, T low, T high) {
    if (!(value < low) && !(value > high)) return;
    const std::string rule = concat("must be from ", low, " to ", high, ".");
    if (value > high)
      add(rule_got_fix(concat(name, " ", rule), concat(value), concat("--", name, " ", high, " (the largest)")));
    else
      add(rule_got_fix(concat(name, " ", rule), concat(value),
                       usual<T>(name) < low ? concat("--", name, " ", low, " (the least)") : default_of(name)));
  }
  void at_least(const char* name, std::int64_t value, std::int64_t low) {
    if (value < low) option(name, false, concat("must be at least ", low, "."), concat(value));
  }
  void one_of(const char* name, const std::string& value, const std::vector<std::string>& allowed) {
    const auto knows = [&](const std::string& word) { return std::ranges::find(allowed, word) != allowed.end(); };
    if (knows(value)) return;
    const bool has_usual = !usual_text(name).empty() || knows("");
    add(not_a_choice(name, value, allowed, concat("--", name),
                     has_usual ? default_of(name) : concat("--", name, " ", allowed.front())));
  }
  /// Each option of a recipe's section that has config::Choices is one of them, each element of a list too.
  template <class Section>
  void choices(const std::string& section, const Section& options) {
    struct Listed {  // once a thread: fixes are tried by the hundred (mend.h)
      Section options;
      std::vector<config::Field> fields = config::fields_of(options).fields;
      Listed() {
        std::erase_if(fields, [](const config::Field& field) { return field.meaning.choices.empty(); });
      }
    };
    thread_local Listed listed;
    listed.options = options;
    for (const config::Field& field : listed.fields) {
      const std::string name = section + "." + field.path;
      if (const auto* const* list = std::get_if<std::vector<std::string>*>(&field.value))
        for (const std::string& value : **list) one_of(name.c_str(), value, field.meaning.choices);
      else
        one_of(name.c_str(), *std::get<std::string*>(field.value), field.meaning.choices);
    }
  }
  /// Runs a function that throws ConfigError for a violation.
  template <class F>
  void attempt(F&& function) {
    try {
      function();
    } catch (const ConfigError& error) {
      add(error.what());
    }
  }
  /// Whether all rules so far hold: what follows from wrong values need not be checked.
  bool hold() const { return violations_.empty(); }
  void finish() const {
    if (!hold()) throw ConfigError(violations_);
  }

 private:
  void add(const std::string& violation) {
    if (violations_.find(violation) != std::string::npos) return;  // a derived value ran into the same
    violations_ += (violations_.empty() ? "" : "\n") + violation;
  }
  /// Every option with its default, listed once: fixes are tried by the hundred (mend.h), layouts by the thousand.
  static const std::vector<config::Field>& defaults() {
    static config::RunConfig config;
    static const config::Fields listed = config::fields_of(config);
    return listed.fields;
  }
  static std::string usual_text(const std::string& option) {
    for (const config::Field& field : defaults())
      if (field.path == option) return config::plain_value(field.value);
    throw std::logic_error("no option is named " + option);
  }
  static std::string default_of(const std::string& option) {
    const std::string usual = usual_text(option);
    return concat("--", option, usual.empty() ? "=" : " ", usual, " (the default)");
  }

  template <class T>
  static T usual(const std::string& option) {
    for (const config::Field& field : defaults())
      if (field.path == option)
        if (T* const* value = std::get_if<T*>(&field.value)) return **value;
    throw std::logic_error("no option of this type is named " + option);
  }

  std::string violations_;
};

/// The next number from `size` on that `unit` divides.
inline std::int64_t next_multiple(std::int64_t size, std::int64_t unit) {
  return (std::clamp<std::int64_t>(size, 1, kMaxVocab) + unit - 1) / unit * unit;
}

/// The rules of the section model that need no other section.
void check_model(const config::ModelConfig& model, Rules& rules);
/// The rules of the sections lora, dpo and distill, and what these exclude.
void check_tuning(const config::RunConfig& config, Rules& rules);
/// The rules of training in 8 bits, and what that excludes.
void check_fp8(const config::RunConfig& config, Rules& rules);
/// The rules of fp8.recipe blockwise and mxfp8, of a model that keeps the other rules: no rank may have a part of a
/// block, and on a GPU all numbers are E4M3.
void check_fp8_blocks(const config::RunConfig& config, const ModelShape& shape, Rules& rules);
/// The rules of the model's experts, and of how the `shares` ranks with other tokens (dp x cp) share them.
void check_experts(const config::ModelConfig& model, Rules& rules);
void check_expert_layout(const config::RunConfig& config, int shares, Rules& rules);
/// The rules of what backward computes again, of a model of `num_layers` layers (0: not known) on `pp` pipeline ranks.
void check_recomputation(const config::TrainConfig& train, int pp, std::int64_t num_layers, Rules& rules);
/// The rules of ranks that share sequences.
void check_sequence_shares(const config::RunConfig& config, Rules& rules);
/// The rules of the section guard.
void check_guard(const config::GuardConfig& guard, Rules& rules);
/// The rules of the sections checkpoint and log, and of the ranks that log names.
void check_saving(const config::CheckpointConfig& checkpoint, const config::LogConfig& log, Rules& rules);
void check_named_ranks(const config::LogConfig& log, int world_size, Rules& rules);

}  // namespace megatron::plan
