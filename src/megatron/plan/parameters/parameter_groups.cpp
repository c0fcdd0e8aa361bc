#include "megatron/plan/parameters/parameter_groups.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "megatron/base/error.h"

namespace megatron::plan {
namespace {

struct Entry {
  std::string pattern;
  double value;
};

std::vector<Entry> entries_of(const char* option, const std::vector<std::string>& list) {
  std::vector<Entry> entries;
  for (const std::string& text : list) {
    const std::size_t equals = text.rfind('=');
    Entry entry{text.substr(0, equals), 0};
    bool good = equals != std::string::npos && equals > 0;
    if (good) {
      const char* const end = text.data() + text.size();
      const auto [stop, error] = std::from_chars(text.data() + equals + 1, end, entry.value);
      good = error == std::errc() && stop == end && std::isfinite(entry.value) && entry.value >= 0;
    }
    if (!good)
      throw ConfigError(
          rule_got_fix(concat("optimizer.", option, " takes entries PATTERN=NUMBER, the number finite and at least 0."),
                       "'" + text + "'", concat("--optimizer.", option, " 'embedding.*=0.1'")));
    entries.push_back(std::move(entry));
  }
  return entries;
}

/// Whether a pattern means the parameter. Biases by which a router chooses experts are moved by its load alone: a
/// buffer in Megatron-Core, which no optimizer sees.
bool is_meant(const std::string& pattern, const ParameterSpec& spec) {
  return !spec.name.ends_with(Experts::kBias) && matches(pattern, spec.name);
}

double last_match(const std::vector<Entry>& entries, const ParameterSpec& spec, double otherwise) {
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry)
    if (is_meant(entry->pattern, spec)) return entry->value;
  return otherwise;
}

}  // namespace

bool matches(const std::string& pattern, const std::string& name) {
  // The classic scan with one place to come back to: the last star, and how much it has taken.
  std::size_t p = 0, n = 0, star = std::string::npos, taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string::npos) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

double mup_width(const config::ModelConfig& model) {
  if (!model.use_mup || model.mup_base_hidden_size <= 0) return 1;
  return static_cast<double>(model.hidden_size) / static_cast<double>(model.mup_base_hidden_size);
}

std::vector<Multipliers> multipliers(const config::OptimizerConfig& optimizer, const std::vector<ParameterSpec>& specs,
                                     double width, bool decoupled) {
  const auto rates = entries_of("lr_mult", optimizer.lr_mult), decays = entries_of("wd_mult", optimizer.wd_mult);
  const bool adam = optimizer.name == "adam", sgd = optimizer.name == "sgd", lion = optimizer.name == "lion";
  std::vector<Multipliers> result;
  for (const ParameterSpec& spec : specs) {
    Multipliers own{.learning_rate = last_match(rates, spec, 1),
                    .weight_decay = last_match(decays, spec, spec.weight_decay ? 1 : 0),
                    .words = spec.is_word_matrix()};
    const bool hidden = spec.is_layer_matrix();
    if (hidden && (adam || lion)) own.learning_rate /= width;
    if (hidden && adam) own.eps /= width;
    if (!hidden && sgd && !(decoupled && own.words)) own.learning_rate *= width;
    result.push_back(own);
  }
  return result;
}

void check_patterns(const config::OptimizerConfig& optimizer, const std::vector<ParameterSpec>& whole) {
  const auto check = [&](const char* option, const std::vector<std::string>& list) {
    for (const Entry& entry : entries_of(option, list)) {
      const bool matched = std::any_of(whole.begin(), whole.end(),
                                       [&](const ParameterSpec& spec) { return is_meant(entry.pattern, spec); });
      if (!matched)
        throw ConfigError(
            rule_got_fix(concat("optimizer.", option, ": each pattern must match a parameter of the model, as ",
                                whole.front().name, "."),
                         "'" + entry.pattern + "'",
                         concat("leave --optimizer.", option,
                                " out, or let '*' stand for the layers and the modules around a name")));
    }
  };
  check("lr_mult", optimizer.lr_mult);
  check("wd_mult", optimizer.wd_mult);
}

}  // namespace megatron::plan
