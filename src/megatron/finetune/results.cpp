#include "megatron/finetune/results.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <span>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"

namespace megatron::finetune {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kResult = "result.json";

/// Of the validation set in a seed's folder, of a further set in its folder there.
fs::path logits_file(const fs::path& folder, const fs::path& set) {
  return set.empty() ? folder / "valid_logits.f32" : folder / set / "logits.f32";
}

std::vector<tasks::Metric> metrics_of(const Json& object) {
  std::vector<tasks::Metric> metrics;
  for (const auto& [name, value] : object.items()) metrics.push_back({name, value.get<double>()});
  return metrics;
}

Json json_of(const std::vector<tasks::Metric>& metrics) {
  Json object = Json::object();
  for (const tasks::Metric& metric : metrics) object[metric.name] = metric.value;
  return object;
}

SeedResult result_of(const Json& object) {
  SeedResult result{.seed = object.at("seed").get<std::uint64_t>(),
                    .task = object.at("task").get<std::string>(),
                    .origin = {.recipe = object.at("recipe").get<std::string>()},
                    .iteration = object.at("iteration").get<std::int64_t>(),
                    .loss = object.at("loss").is_number() ? object.at("loss").get<double>() : 0,
                    .null_threshold = object.at("null_threshold").get<double>(),
                    .metrics = metrics_of(object.at("metrics"))};
  if (const auto sets = object.find("sets"); sets != object.end())
    for (const auto& [name, metrics] : sets->items()) result.further.push_back({name, metrics_of(metrics)});
  if (const auto inputs = object.find("inputs"); inputs != object.end()) inputs->get_to(result.origin.inputs);
  return result;
}

}  // namespace

fs::path seed_folder(const fs::path& out, std::uint64_t seed) { return out / concat("seed_", seed); }

void write_result(const fs::path& folder, const SeedResult& result, const std::vector<float>& logits) {
  write_logits(folder, {}, logits);
  Json object = {{"task", result.task}, {"seed", result.seed}, {"metrics", json_of(result.metrics)}};
  for (const SetScores& scores : result.further) object["sets"][scores.set] = json_of(scores.metrics);
  object.update({{"iteration", result.iteration},
                 {"loss", result.loss},
                 {"null_threshold", result.null_threshold},
                 {"recipe", result.origin.recipe},
                 {"inputs", result.origin.inputs}});
  write_file(folder / kResult, object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::optional<SeedResult> read_result(const fs::path& folder) {
  const fs::path path = folder / kResult;
  if (!fs::exists(path)) return std::nullopt;
  try {
    return result_of(Json::parse(read_file(path, std::uint64_t{1} << 24)));
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(rule_got_fix(path.string() + " must be the result of a seed.", error.what(),
                                   "remove it, and the seed runs again"));
  }
}

void write_logits(const fs::path& folder, const fs::path& set, const std::vector<float>& logits) {
  const auto bytes = std::as_bytes(std::span(logits));
  write_file(logits_file(folder, set), {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

std::vector<float> read_logits(const fs::path& folder, std::size_t count, const fs::path& set) {
  const fs::path path = logits_file(folder, set);
  const MappedFile file(path);
  if (file.size() != count * sizeof(float))
    throw ConfigError(rule_got_fix(concat(path.string(), " must hold ", count, " logits of its set."),
                                   concat(file.size(), " bytes"), "remove the seed's folder, and it runs again"));
  std::vector<float> logits(count);
  std::memcpy(logits.data(), file.bytes().data(), file.size());
  return logits;
}

void write_predictions(const fs::path& folder, const tasks::Task& task, const std::vector<float>& logits,
                       double null_threshold, const std::string& report) {
  for (const tasks::PredictionFile& file : task.predictions(logits, null_threshold))
    write_file(folder / file.name, file.text);
  if (!report.empty()) write_file(folder / "scores.json", report);
}

}  // namespace megatron::finetune
