#include "megatron/tasks/scores/seeds.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "megatron/base/error.h"
#include "megatron/base/text/format.h"

namespace megatron::tasks {
namespace {

std::string markdown_row(const std::string& name, const std::vector<double>& values) {
  std::string row = "| " + name + " |";
  for (const double value : values) row += fmt::format(" {:.2f} |", value);
  return row + "\n";
}

/// Columns [first, last) of a table.
struct Columns {
  std::size_t first = 0, last = 0;
};

nlohmann::ordered_json named(const std::vector<std::string>& names, const std::vector<double>& values,
                             Columns columns) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (std::size_t i = columns.first; i < columns.last; ++i) object[names[i]] = values.at(i);
  return object;
}

void add_scores(nlohmann::ordered_json& object, const SeedTable& table, Columns columns) {
  object["metric"] = table.metrics.at(columns.first);
  object["metrics"] = nlohmann::ordered_json::array();
  for (std::size_t i = columns.first; i < columns.last; ++i) object["metrics"].push_back(table.metrics[i]);
  object["seeds"] = nlohmann::ordered_json::object();
  for (const SeedTable::SeedRun& run : table.runs)
    object["seeds"][std::to_string(run.seed)] = named(table.metrics, run.values, columns);
  object["median"] = named(table.metrics, table.medians(), columns);
  object["ensemble"] =
      table.ensemble.empty() ? nlohmann::ordered_json() : named(table.metrics, table.ensemble, columns);
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) throw std::logic_error("median: of no value");
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::vector<float> mean_logits(std::span<const std::vector<float>> runs) {
  if (runs.empty()) throw std::logic_error("mean_logits: of no run");
  std::vector<double> sums(runs[0].size());
  for (const std::vector<float>& run : runs) {
    if (run.size() != sums.size()) throw std::logic_error("mean_logits: runs of different sizes");
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += run[i];
  }
  std::vector<float> mean(sums.size());
  for (std::size_t i = 0; i < sums.size(); ++i)
    mean[i] = static_cast<float>(sums[i] / static_cast<double>(runs.size()));
  return mean;
}

std::vector<double> SeedTable::medians() const {
  std::vector<double> result;
  for (std::size_t metric = 0; metric < metrics.size(); ++metric) {
    std::vector<double> values;
    for (const SeedRun& run : runs) values.push_back(run.values.at(metric));
    result.push_back(median(std::move(values)));
  }
  return result;
}

std::string SeedTable::markdown() const {
  std::string table = "| " + task + " |", line = "|--|";
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    table += concat(" ", sets.empty() ? "" : sets.at(i) + " ", metrics[i], " |");
    line += "--:|";
  }
  table += "\n" + line + "\n";
  for (const SeedRun& run : runs) table += markdown_row(concat("seed ", run.seed), run.values);
  table += markdown_row(concat("median of ", runs.size()), medians());
  if (!ensemble.empty()) table += markdown_row(concat("ensemble of ", runs.size()), ensemble);
  return table;
}

std::string SeedTable::json() const {
  std::vector<Columns> parts = {{0, 1}};  // the columns of each set
  for (std::size_t i = 1; i < metrics.size(); ++i)
    if (sets.empty() || sets.at(i) == sets[i - 1])
      parts.back().last = i + 1;
    else
      parts.push_back({i, i + 1});
  nlohmann::ordered_json object = {{"task", task}};
  add_scores(object, *this, parts.front());
  if (!sets.empty())
    for (const Columns& part : parts) add_scores(object["sets"][sets[part.first]], *this, part);
  return object.dump() + "\n";
}

}  // namespace megatron::tasks
