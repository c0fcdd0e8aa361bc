#include "megatron/train/log/metrics.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/files/write_error.h"
#include "megatron/base/text/printable.h"
#include "megatron/train/log/metric_fields.h"

namespace megatron::train {
namespace {

using Json = nlohmann::ordered_json;

/// Every field that is written here besides figures, mtp_K_loss and scores of tasks; of validations without "valid_"
/// and "test_".
constexpr std::string_view kOwnFields[] = {"iteration",
                                           "consumed_samples",
                                           "batch_size",
                                           "loss",
                                           "grad_norm",
                                           "learning_rate",
                                           "loss_scale",
                                           "tokens_per_s",
                                           "step_ms",
                                           "tflops_per_rank",
                                           "data_wait_ms",
                                           "memory_bytes",
                                           "peak_memory_bytes",
                                           "decoupled_learning_rate",
                                           "weight_decay",
                                           "lm_loss",
                                           "sop_loss",
                                           "num_zeros",
                                           "params_norm",
                                           "expert_imbalance",
                                           "expert_dropped",
                                           "load_balancing_loss",
                                           "z_loss",
                                           "expert_loads",
                                           "expert_dropped_by_layer",
                                           "times_ms",
                                           "slowest_rank",
                                           "slowest_by_timer",
                                           "skipped",
                                           "batch_skipped",
                                           "wrong_ranks",
                                           "matmul_precision",
                                           "ppl",
                                           "set"};

[[noreturn]] void fail(const std::filesystem::path& path, const char* what) {
  throw std::runtime_error(write_error(path, what, errno));
}

// Keeps the lines of iterations up to `last` and of validations up to `validated`. A line that is no whole object was
// cut off by a crash: it goes too.
// Returns how many whole ones went.
std::int64_t drop_lines_after(const std::filesystem::path& path, std::int64_t last, std::int64_t validated) {
  std::int64_t dropped = 0;
  if (!std::filesystem::exists(path)) return dropped;
  std::istringstream in(read_file(path));
  std::string kept;
  for (std::string line; std::getline(in, line);) {
    const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) continue;
    const auto iteration = object.find("iteration");
    if (iteration != object.end() && iteration->is_number_integer() &&
        iteration->get<std::int64_t>() <= (object.contains("valid_loss") ? validated : last))
      kept += line + "\n";
    else
      ++dropped;
  }
  write_file(path, kept);
  return dropped;
}

void add_expert_figures(Json& object, const ExpertMetrics& experts) {
  object["expert_imbalance"] = experts.imbalance();
  if (experts.drops) object["expert_dropped"] = experts.mean(&ExpertMetrics::Layer::dropped);
  if (experts.balances) object["load_balancing_loss"] = experts.mean(&ExpertMetrics::Layer::balance);
  if (experts.z) object["z_loss"] = experts.mean(&ExpertMetrics::Layer::z);
  if (!experts.by_layer) return;
  for (const ExpertMetrics::Layer& layer : experts.layers) {
    Json loads = Json::array();
    for (const double load : layer.loads) loads.push_back(static_cast<std::int64_t>(load));
    object["expert_loads"].push_back(std::move(loads));
    if (experts.drops) object["expert_dropped_by_layer"].push_back(layer.dropped);
  }
}

}  // namespace

bool is_metrics_field(std::string_view name) {
  for (const std::string_view part : {std::string_view("valid_"), std::string_view("test_")})
    if (name.starts_with(part)) {
      name.remove_prefix(part.size());
      break;
    }
  return std::ranges::find(kOwnFields, name) != std::end(kOwnFields) ||
         (name.starts_with("mtp_") && name.ends_with("_loss"));
}

double ExpertMetrics::imbalance() const {
  double most = 0;
  for (const Layer& layer : layers) most = std::max(most, layer.imbalance);
  return most;
}

double ExpertMetrics::mean(double Layer::*figure) const {
  double sum = 0;
  for (const Layer& layer : layers) sum += layer.*figure;
  return layers.empty() ? 0 : sum / static_cast<double>(layers.size());
}

MetricsFile::MetricsFile(std::filesystem::path path, std::int64_t resume_iteration, std::int64_t validated_iteration,
                         RequireFolder require_folder)
    : path_(std::move(path)), require_folder_(std::move(require_folder)) {
  if (require_folder_) require_folder_();
  lines_taken_out_ = drop_lines_after(path_, resume_iteration, validated_iteration);
  open();
}

void MetricsFile::open() {
  file_.reset(std::fopen(path_.c_str(), "a+e"));
  if (!file_) fail(path_, "cannot be opened");
}

// Somebody has removed or renamed the file while the run is under way, or has put another in its place. Nothing is
// lost: what was written is still read from the open file.
void MetricsFile::keep_named() {
  struct stat named {
  }, own{};
  if (::fstat(::fileno(file_.get()), &own) != 0) fail(path_, "cannot be looked at");
  const bool there = ::stat(path_.c_str(), &named) == 0;
  if (there && named.st_dev == own.st_dev && named.st_ino == own.st_ino) return;
  if (require_folder_) require_folder_();
  if (there) {
    if (!S_ISREG(named.st_mode)) return;  // nothing to write lines to: they stay in the file that is open
    megatron::write_line(stderr,
                         concat("warning: ", path_.string(), " was replaced during the run: lines go there now"));
  } else {
    make_folder(path_.parent_path());
    write_file(path_, whole_text());
    megatron::write_line(stderr,
                         concat("warning: ", path_.string(), " was removed during the run: it is created again"));
  }
  open();
}

std::string MetricsFile::whole_text() const {
  std::string text;
  char part[1 << 16];
  for (ssize_t got = 0; (got = ::pread(::fileno(file_.get()), part, sizeof part, static_cast<off_t>(text.size()))) > 0;)
    text.append(part, static_cast<std::size_t>(got));
  return text;
}

void MetricsFile::write(const IterationMetrics& metrics) {
  Json object = {{"iteration", metrics.iteration},
                 {"consumed_samples", metrics.consumed_samples},
                 {"batch_size", metrics.batch_size},
                 {"loss", metrics.loss},
                 {"grad_norm", metrics.grad_norm},
                 {"learning_rate", metrics.learning_rate},
                 {"loss_scale", metrics.loss_scale},
                 {"tokens_per_s", metrics.tokens_per_s},
                 {"step_ms", metrics.step_ms},
                 {"tflops_per_rank", metrics.tflops_per_rank},
                 {"data_wait_ms", metrics.data_wait_ms},
                 {"memory_bytes", metrics.memory_bytes},
                 {"peak_memory_bytes", metrics.peak_memory_bytes}};
  if (metrics.decoupled_learning_rate) object["decoupled_learning_rate"] = *metrics.decoupled_learning_rate;
  if (metrics.weight_decay) object["weight_decay"] = *metrics.weight_decay;
  if (metrics.sentence_loss) {
    object["lm_loss"] = metrics.loss - *metrics.sentence_loss;
    object["sop_loss"] = *metrics.sentence_loss;
  }
  for (std::size_t k = 0; k < metrics.depth_losses.size(); ++k)
    object[concat("mtp_", k + 1, "_loss")] = metrics.depth_losses[k];
  for (const LossFigure& figure : metrics.figures) object[figure.name] = figure.value;
  if (metrics.num_zeros) object["num_zeros"] = *metrics.num_zeros;
  if (metrics.params_norm) object["params_norm"] = *metrics.params_norm;
  if (metrics.experts) add_expert_figures(object, *metrics.experts);
  for (const IterationMetrics::Time& time : metrics.times)
    object["times_ms"][time.name] = Json::array({time.min_ms, time.max_ms});
  if (metrics.straggler)
    object["slowest_rank"] = {{"rank", metrics.straggler->rank},
                              {"compute_ms", metrics.straggler->compute_ms},
                              {"median_ms", metrics.straggler->median_ms}};
  for (const IterationMetrics::SlowestRank& slowest : metrics.slowest_by_timer)
    object["slowest_by_timer"][slowest.timer] = {
        {"rank", slowest.rank}, {"ms", slowest.ms}, {"median_ms", slowest.median_ms}};
  if (metrics.skipped) object["skipped"] = true;
  if (metrics.wrong_ranks) object["wrong_ranks"] = *metrics.wrong_ranks;
  if (metrics.high_matmul_precision) object["matmul_precision"] = "high";
  write_line(object.dump());
}

void MetricsFile::write_skipped_batch(std::int64_t iteration, std::int64_t consumed_samples, std::int64_t batch_size) {
  const Json object = {{"iteration", iteration},   {"consumed_samples", consumed_samples},
                       {"batch_size", batch_size}, {"loss", nullptr},
                       {"grad_norm", nullptr},     {"skipped", true},
                       {"batch_skipped", true}};
  write_line(object.dump());
}

void MetricsFile::write(const ValidationMetrics& metrics) {
  Json object = {{"iteration", metrics.iteration},
                 {"consumed_samples", metrics.consumed_samples},
                 {metrics.test ? "test_loss" : "valid_loss", metrics.loss},
                 {metrics.test ? "test_ppl" : "valid_ppl", metrics.perplexity}};
  const std::string part = metrics.test ? "test" : "valid";
  for (const LossFigure& figure : metrics.figures) object[concat(part, "_", figure.name)] = figure.value;
  if (metrics.sentence_loss) {
    object[part + "_lm_loss"] = metrics.loss - *metrics.sentence_loss;
    object[part + "_sop_loss"] = *metrics.sentence_loss;
  }
  if (!metrics.set.empty()) object["valid_set"] = metrics.set;
  write_line(object.dump());
}

void MetricsFile::write(const TaskMetrics& metrics) {
  Json object = {
      {"iteration", metrics.iteration}, {"consumed_samples", metrics.consumed_samples}, {"valid_loss", metrics.loss}};
  for (const tasks::Metric& metric : metrics.scores) object["valid_" + metric.name] = metric.value;
  write_line(object.dump());
}

void MetricsFile::write_line(const std::string& line) {
  keep_named();
  const std::string whole = line + "\n";
  if (std::fwrite(whole.data(), 1, whole.size(), file_.get()) != whole.size() || std::fflush(file_.get()) != 0)
    fail(path_, "cannot be written");
}

}  // namespace megatron::train
