#include "megatron/schedule/table.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <stdexcept>

#include "megatron/base/error.h"
#include "megatron/base/text/nearest.h"

namespace megatron::schedule {

// The generators, each in its file of schedules/.
std::vector<Op> gpipe(const Shape& shape, int rank);
std::vector<Op> one_f_one_b(const Shape& shape, int rank);
std::vector<Op> interleaved(const Shape& shape, int rank);
std::vector<Op> zero_bubble_h1(const Shape& shape, int rank);
std::vector<Op> zero_bubble_v(const Shape& shape, int rank);
std::vector<Op> dualpipe_v(const Shape& shape, int rank);

namespace {

constexpr std::array kSchedules = {
    ScheduleInfo{.name = "gpipe",
                 .title = "GPipe",
                 .generator = gpipe,
                 .text = "All forwards, then all backwards. The bubble is (p-1)/m of the work; every microbatch's "
                         "activations are held at once.",
                 .source = "Huang et al. 2019, GPipe"},
    ScheduleInfo{.name = "1f1b",
                 .title = "1F1B",
                 .is_default = true,
                 .generator = one_f_one_b,
                 .text = "After the warm-up each rank alternates one forward with one backward. The bubble is GPipe's, "
                         "but rank r holds p-r activations at most, whatever m is.",
                 .source = "Narayanan et al. 2019, PipeDream; Narayanan et al. 2021, Efficient large-scale language "
                           "model training"},
    ScheduleInfo{.name = "interleaved",
                 .title = "Interleaved 1F1B",
                 .min_chunks = 2,
                 .max_chunks = kMaxStages,
                 .is_default = true,
                 .takes_groups = true,
                 .generator = interleaved,
                 .text = "Each rank has v stages (here 2), one lane each, so that a microbatch passes every rank v "
                         "times. The bubble is (p-1)/(v m) of the work, for v times the messages and more activations.",
                 .source = "Narayanan et al. 2021, section 2.2"},
    ScheduleInfo{.name = "zb-h1",
                 .title = "ZB-H1",
                 .splits_backward = true,
                 .generator = zero_bubble_h1,
                 .text = "Backward is split: the gradient of the input is sent at once, the gradients of weights "
                         "(hatched) fill what would be idle time. A third of 1F1B's bubble at 1F1B's peak of "
                         "activations.",
                 .source = "Qi et al. 2023, Zero bubble pipeline parallelism"},
    ScheduleInfo{.name = "zb-v",
                 .title = "ZB-V",
                 .min_chunks = 2,
                 .max_chunks = 2,
                 .v_shaped = true,
                 .splits_backward = true,
                 .generator = zero_bubble_v,
                 .text =
                     "Two stages per rank, placed as a V, so that rank 0 has the first and the last. With equal times "
                     "of forward, input and weight gradients no rank is idle between its first and its last "
                     "operation.",
                 .source = "Qi et al. 2024, Pipeline parallelism with controllable memory"},
    ScheduleInfo{.name = "dualpipev",
                 .title = "DualPipeV",
                 .min_chunks = 2,
                 .max_chunks = 2,
                 .v_shaped = true,
                 .microbatches_per_rank = 2,
                 .splits_backward = true,
                 .generator = dualpipe_v,
                 .text = "DualPipe cut in half: on ZB-V's stages, forwards on the one way alternate with backwards on "
                         "the other, as pairs whose messages and computation the original overlaps; here a pair is two "
                         "operations. Backward is split where the pipeline fills and drains alone, so that little is "
                         "kept for weights; a rank holds 2p+1 activations. At least 2p microbatches.",
                 .source = "DeepSeek-AI 2025, DualPipe; Sea AI Lab 2025, DualPipe could be better without the Dual"},
};

std::string names_of(const auto& wanted) {
  std::string names;
  for (const ScheduleInfo& info : kSchedules)
    if (wanted(info)) names += (names.empty() ? "" : ", ") + std::string(info.name);
  return names;
}

}  // namespace

std::span<const ScheduleInfo> schedules() { return kSchedules; }

bool is_name(std::string_view text) {
  return text == kAuto || std::ranges::any_of(kSchedules, [&](const ScheduleInfo& info) { return text == info.name; });
}

const ScheduleInfo& schedule_named(const std::string& name) {
  std::vector<std::string> known_names = {kAuto};
  for (const ScheduleInfo& info : kSchedules) {
    if (name == info.name) return info;
    known_names.emplace_back(info.name);
  }
  std::string plain;  // as ours are written
  for (const char c : name) plain += c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const std::string near = nearest_name(plain, known_names);
  throw ConfigError(
      rule_got_fix(concat("a pipeline schedule is one of: ", kAuto, ", ", schedule_names(), "; or a file that exists."),
                   "'" + name + "'", concat("--schedule ", near.empty() ? kAuto : near)));
}

const ScheduleInfo& default_schedule(int num_chunks) {
  for (const ScheduleInfo& info : kSchedules)
    if (info.is_default && info.takes(num_chunks)) return info;
  throw std::logic_error(concat("no schedule has ", num_chunks, " stages per rank"));
}

std::string schedule_names() {
  return names_of([](const ScheduleInfo&) { return true; });
}

std::string schedule_names(int num_chunks) {
  return names_of([&](const ScheduleInfo& info) { return info.takes(num_chunks); });
}

std::string schedule_names(bool ScheduleInfo::*property) {
  return names_of([&](const ScheduleInfo& info) { return info.*property; });
}

}  // namespace megatron::schedule
