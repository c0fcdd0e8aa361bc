#include "megatron/train/log/progress_file.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/text/format.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;

std::string time_text(std::time_t time) {
  std::tm local{};
  ::localtime_r(&time, &local);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local)};
}

std::optional<std::time_t> time_of(const std::string& text) {
  std::tm local{};
  const char* const end = ::strptime(text.c_str(), "%Y-%m-%d %H:%M:%S", &local);
  if (end == nullptr || *end != '\0') return std::nullopt;
  local.tm_isdst = -1;
  return std::mktime(&local);
}

std::vector<std::string> split_at_tabs(std::string_view line) {
  std::vector<std::string> fields;
  while (true) {
    const std::size_t tab = std::min(line.find('\t'), line.size());
    fields.emplace_back(line.substr(0, tab));
    if (tab == line.size()) return fields;
    line.remove_prefix(tab + 1);
  }
}

/// The number behind "name: " of a field.
std::optional<double> number_of(const std::string& field) {
  const std::size_t colon = field.find(": ");
  if (colon == std::string::npos) return std::nullopt;
  double value = 0;
  const char* const last = field.data() + field.size();
  const auto [end, error] = std::from_chars(field.data() + colon + 2, last, value);
  return error == std::errc() && end == last ? std::optional(value) : std::nullopt;
}

}  // namespace

ProgressFile::ProgressFile(const fs::path& folder, const Job& job)
    : path_(folder / "progress.txt"), job_(job), first_flops_(job.flops) {
  fs::create_directories(folder);
  const std::time_t now = std::time(nullptr);
  first_start_ = now;
  // Jobs before this one, from the last with another number of ranks on. Lines of another form are skipped.
  constexpr std::uintmax_t kMostBytes = 64 << 20;
  std::time_t start = 0;  // none
  double at_start = 0, saved = 0, under_way = 0;
  if (fs::is_regular_file(path_) && fs::file_size(path_) <= kMostBytes) {
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) {
      const std::vector<std::string> fields = split_at_tabs(line);
      if (fields.size() < 4) continue;
      const std::optional<double> ranks = number_of(fields[2]);
      const double flops = fields.size() > 7 ? number_of(fields[7]).value_or(0) : 0;
      if (fields[3] == "Saved checkpoint") saved = flops;
      if (fields[3] == "Saving async checkpoint") under_way = flops;
      if (fields[3] == "Saved async checkpoint" && under_way > 0) saved = std::exchange(under_way, 0);
      if (!ranks || *ranks != job_.ranks) {
        start = 0;
      } else if (fields[3] == "Starting job" && start == 0) {
        start = time_of(fields[0]).value_or(0);
        at_start = saved;
      }
    }
  }
  if (start > 0 && start <= now) {
    first_start_ = start;
    first_flops_ = at_start;
  }
  append("Starting job", now);
}

void ProgressFile::save(const Save& save) {
  saved();  // one is written at a time
  const std::time_t now = std::time(nullptr);
  const auto tera_per_rank = [&](double flops, double seconds) {
    return flops / (std::max(seconds, 1e-3) * 1e12 * job_.ranks);
  };
  append(fmt::format("{}\tIteration: {}\tJob throughput: {:.1f} TFLOP/s/GPU\tCumulative throughput: {:.1f} TFLOP/s/GPU"
                     "\tFloating-point operations: {:.2e}\tTokens (in billions): {:.2f}",
                     save.is_under_way ? "Saving async checkpoint" : "Saved checkpoint", save.iteration,
                     tera_per_rank(save.flops - job_.flops, save.seconds),
                     tera_per_rank(save.flops - first_flops_, std::difftime(now, first_start_)), save.flops,
                     save.tokens / 1e9),
         now);
  if (save.is_under_way) under_way_ = save.iteration;
}

void ProgressFile::saved() {
  if (under_way_) append(fmt::format("Saved async checkpoint\tIteration: {}", *under_way_), std::time(nullptr));
  under_way_.reset();
}

void ProgressFile::append(const std::string& text, std::time_t now) {
  std::ofstream file(path_, std::ios::app);
  file << fmt::format("{}\tJob ID: {}\t# GPUs: {}\t{}\n", time_text(now), job_.id, job_.ranks, text) << std::flush;
  if (!file) throw std::runtime_error(concat(path_.string(), ": cannot be written"));
}

}  // namespace megatron::train
