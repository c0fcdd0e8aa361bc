#include <array>
#include <cstdio>
#include <filesystem>

#include "app/docs.h"
#include "megatron/base/error.h"
#include "megatron/base/file.h"
#include "megatron/config/options.h"
#include "megatron/schedule/draw.h"
#include "megatron/schedule/generate.h"

namespace megatron::app {
namespace {

struct Described {
  const char* file;
  const char* title;
  const char* option;  // that asks for it
  const char* what;
  const char* source;
  schedule::Program program;
};

constexpr int kRanks = 4, kMicrobatches = 8;

std::vector<Described> schedules() {
  const schedule::Shape one{.num_ranks = kRanks, .num_chunks = 1, .num_microbatches = kMicrobatches};
  const schedule::Shape two{.num_ranks = kRanks, .num_chunks = 2, .num_microbatches = kMicrobatches};
  return {
      {"gpipe", "GPipe", "--schedule gpipe",
       "All forwards, then all backwards. The bubble is (p-1)/m of the work; every microbatch's activations are held "
       "at once.",
       "Huang et al. 2019, GPipe", schedule::gpipe(one)},
      {"1f1b", "1F1B", "--schedule 1f1b",
       "After the warm-up each rank alternates one forward with one backward. The bubble is GPipe's, but rank r holds "
       "p-r activations at most, whatever m is.",
       "Narayanan et al. 2019, PipeDream; Narayanan et al. 2021, Efficient large-scale language model training",
       schedule::one_f_one_b(one)},
      {"interleaved", "Interleaved 1F1B", "--vpp 2 --schedule interleaved",
       "Each rank has v stages (here 2), one lane each, so that a microbatch passes every rank v times. The bubble "
       "is (p-1)/(v m) of the work, for v times the messages and more activations.",
       "Narayanan et al. 2021, section 2.2", schedule::interleaved(two)},
      {"zb-h1", "ZB-H1", "--schedule zb-h1",
       "Backward is split: the gradient of the input goes on at once, the gradients of weights (hatched) fill what "
       "would be idle time. A third of 1F1B's bubble at 1F1B's peak of activations.",
       "Qi et al. 2023, Zero bubble pipeline parallelism", schedule::zero_bubble_h1(one)},
      {"zb-v", "ZB-V", "--vpp 2 --schedule zb-v",
       "Two stages a rank, placed as a V, so that rank 0 has the first and the last. With equal times of forward, "
       "input and weight gradients no rank is idle between its first and its last operation.",
       "Qi et al. 2024, Pipeline parallelism with controllable memory", schedule::zero_bubble_v(two)},
      {"forward-only", "Forward only", "",
       "What validation runs: no backward, and an activation is kept only while it is computed.", "",
       schedule::forward_only(one)}};
}

std::string percent(double share) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.1f %%", 100 * share);
  return text.data();
}

std::string list_of(const std::vector<int>& numbers) {
  std::string out;
  for (const int number : numbers) out += (out.empty() ? "" : " ") + std::to_string(number);
  return out;
}

struct Options {
  std::string output;
  void visit(auto& v) { v("output", output, "Folder for README.md and the pictures; made if missing."); }
};

}  // namespace

int docs_schedules(const Args& args) {
  Options options;
  const auto words = config::parse_command_line(options, args, "megatron docs schedules --output docs/schedules");
  if (!words.empty())
    throw ConfigError(rule_got_fix("docs schedules takes no words.", words[0], concat("leave '", words[0], "' out")));
  if (options.output.empty())
    throw ConfigError(rule_got_fix("docs schedules needs a folder.", "no --output", "--output docs/schedules"));
  make_folder(options.output);
  const std::filesystem::path folder = options.output;
  std::string table = "| schedule | makespan | bubble | peak of activations by rank |\n|--|--|--|--|\n", sections;
  for (const Described& each : schedules()) {
    const auto stages = static_cast<std::size_t>(each.program.placement.num_stages());
    schedule::Costs costs;
    // Half of a rank's layers take one unit of time, however many stages they are cut into.
    const double share = static_cast<double>(2 * kRanks) / static_cast<double>(stages);
    costs.forward = costs.backward_input = costs.backward_weight = std::vector<double>(stages, share);
    costs.activation_bytes = costs.weight_bytes = std::vector<double>(stages, 1);
    const schedule::Timeline timeline = schedule::simulate(each.program, costs);
    write_file(folder / (std::string(each.file) + ".svg"), schedule::draw_svg(timeline, each.title));
    std::array<char, 32> makespan;
    std::snprintf(makespan.data(), makespan.size(), "%.4g", timeline.makespan);
    table += concat("| ", each.title, " | ", makespan.data(), " | ", percent(timeline.bubble), " | ",
                    list_of(timeline.peak_live), " |\n");
    const std::string source = *each.source ? concat(" (", each.source, ")") : "";
    const std::string option = *each.option ? concat("`", each.option, "`: ") : "";
    sections += concat("\n## ", each.title, "\n\n", option, each.what, source, "\n\n![", each.title, "](", each.file,
                       ".svg)\n");
  }
  write_file(
      folder / "README.md",
      concat("# Pipeline schedules\n\nWritten by `megatron docs schedules`: ", kRanks, " ranks (p), ", kMicrobatches,
             " microbatches (m). Forward, backward of inputs and backward of weights take one unit of time each "
             "for half\nof a rank's layers; messages take none. The peak counts activations, each what one "
             "stage keeps of one microbatch: where a rank has two\nstages, one is half as large.\n\n`megatron "
             "plan RECIPE --draw schedule.svg` draws a recipe's own schedule, `--draw schedule.txt` writes it "
             "as text, and\n`--schedule schedule.txt` runs such a text, of yours too.\n\n",
             table, sections));
  return kDone;
}

}  // namespace megatron::app
