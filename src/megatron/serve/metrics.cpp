#include "megatron/serve/metrics.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "megatron/base/error.h"
#include "megatron/base/text/format.h"

namespace megatron::serve {
namespace {

std::string escaped(const std::string& value) {
  std::string text;
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    if (c == '\n')
      text += "\\n";
    else
      text += c;
  }
  return text;
}

std::string text_of(const Metrics::Labels& labels) {
  std::string text;
  for (const auto& [name, value] : labels) text += concat(text.empty() ? "{" : ",", name, "=\"", escaped(value), "\"");
  return text.empty() ? "" : text + "}";
}

std::string number(double value) {
  return value == std::floor(value) && std::abs(value) < 1e15 ? fmt::format("{}", static_cast<std::int64_t>(value))
                                                              : fmt::format("{}", value);
}

}  // namespace

void Metrics::declare(const std::string& name, const char* type, const char* help, std::vector<double> buckets) {
  const std::lock_guard lock(mutex_);
  Family& one = families_[name];
  one.type = type;
  one.help = help;
  one.buckets = std::move(buckets);
  one.counts.resize(one.buckets.size() + 1);
}

Metrics::Family& Metrics::family(const std::string& name) {
  const auto found = families_.find(name);
  if (found == families_.end()) throw std::logic_error("a metric that is not declared: " + name);
  return found->second;
}

void Metrics::add(const std::string& name, double amount, const Labels& labels) {
  const std::lock_guard lock(mutex_);
  family(name).values[text_of(labels)] += amount;
}

void Metrics::set(const std::string& name, double value, const Labels& labels) {
  const std::lock_guard lock(mutex_);
  family(name).values[text_of(labels)] = value;
}

void Metrics::observe(const std::string& name, double value) {
  const std::lock_guard lock(mutex_);
  Family& one = family(name);
  ++one.counts[static_cast<std::size_t>(std::ranges::lower_bound(one.buckets, value) - one.buckets.begin())];
  one.sum += value;
}

std::string Metrics::text() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const auto& [name, one] : families_) {
    text += concat("# HELP ", name, " ", one.help, "\n# TYPE ", name, " ", one.type, "\n");
    for (const auto& [labels, value] : one.values) text += concat(name, labels, " ", number(value), "\n");
    if (one.buckets.empty()) continue;
    std::uint64_t count = 0;
    for (std::size_t i = 0; i < one.counts.size(); ++i) {
      count += one.counts[i];
      const std::string bound = i < one.buckets.size() ? number(one.buckets[i]) : "+Inf";
      text += concat(name, "_bucket{le=\"", bound, "\"} ", count, "\n");
    }
    text += concat(name, "_sum ", number(one.sum), "\n", name, "_count ", count, "\n");
  }
  return text;
}

void declare_metrics(Metrics& metrics) {
  const std::vector<double> seconds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120};
  metrics.declare("megatron_requests_total", "counter", "Requests by path and status.");
  metrics.declare("megatron_prompt_tokens_total", "counter", "Tokens of prompts that were read.");
  metrics.declare("megatron_generated_tokens_total", "counter", "Tokens that were written.");
  metrics.declare("megatron_cached_tokens_total", "counter", "Tokens of prompts whose keys and values were there.");
  metrics.declare("megatron_texts_total", "counter", "Texts by how they ended.");
  metrics.declare("megatron_queued_texts", "gauge", "Texts that wait for a slot.");
  metrics.declare("megatron_active_texts", "gauge", "Texts under way.");
  metrics.declare("megatron_cache_blocks", "gauge",
                  "Blocks of keys and values: used by texts, kept for prompts that begin alike, and free.");
  metrics.declare("megatron_connections", "gauge", "Open connections.");
  metrics.declare("megatron_step_seconds", "histogram", "Time of one step, which writes a token of each active text.",
                  seconds);
  metrics.declare("megatron_time_to_first_token_seconds", "histogram", "From a request to its first token.", seconds);
  metrics.declare("megatron_text_seconds", "histogram", "From a request to the end of its text.", seconds);
}

}  // namespace megatron::serve
