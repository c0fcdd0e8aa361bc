#include <cstdio>
#include <filesystem>

#include "app/docs/docs.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/config/options.h"
#include "megatron/schedule/generate.h"
#include "megatron/schedule/pictures/draw.h"

namespace megatron::app {
namespace {

constexpr int kRanks = 4, kMicrobatches = 8;

struct Described {
  std::string file, title, option, text, source;  ///< option: what asks for it
  schedule::Program program;
};

/// Those of the table, and what validation runs.
std::vector<Described> described() {
  std::vector<Described> all;
  const auto shape = [](int num_chunks) {
    return schedule::Shape{.num_ranks = kRanks, .num_chunks = num_chunks, .num_microbatches = kMicrobatches};
  };
  for (const schedule::ScheduleInfo& info : schedule::schedules()) {
    const std::string stages = info.min_chunks > 1 ? concat("--vpp ", info.min_chunks, " ") : "";
    all.push_back({info.name, info.title, concat(stages, "--schedule ", info.name), info.text, info.source,
                   schedule::generate(info, shape(info.min_chunks))});
  }
  all.push_back({"forward-only", "Forward only", "",
                 "What validation runs: no backward, and an activation is kept only while it is computed.", "",
                 schedule::forward_only(shape(1))});
  return all;
}

std::string percent(double share) { return formatted("{:.1f} %", 100 * share); }

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
  for (const Described& each : described()) {
    const auto stages = static_cast<std::size_t>(each.program.placement.num_stages());
    schedule::Costs costs;
    // Half of a rank's layers take one unit of time, however many stages they are cut into.
    const double share = static_cast<double>(2 * kRanks) / static_cast<double>(stages);
    costs.forward = costs.backward_input = costs.backward_weight = std::vector<double>(stages, share);
    costs.activation_bytes = costs.weight_bytes = std::vector<double>(stages, 1);
    const schedule::Timeline timeline = schedule::simulate(each.program, costs);
    write_file(folder / (each.file + ".svg"), schedule::draw_svg(timeline, each.title));
    table += formatted("| {} | {:.4g} | {} | {} |\n", each.title, timeline.makespan, percent(timeline.bubble),
                       list_of(timeline.peak_live));
    const std::string source = each.source.empty() ? "" : concat(" (", each.source, ")");
    const std::string option = each.option.empty() ? "" : concat("`", each.option, "`: ");
    sections += concat("\n## ", each.title, "\n\n", option, each.text, source, "\n\n![", each.title, "](", each.file,
                       ".svg)\n");
  }
  write_file(
      folder / "README.md",
      concat("# Pipeline schedules\n\nWritten by `megatron docs schedules`: ", kRanks, " ranks (p), ", kMicrobatches,
             " microbatches (m). Forward, backward of inputs and backward of weights take one unit of time each "
             "for half\nof a rank's layers; messages take none. The peak counts activations, each what one "
             "stage keeps of one microbatch: where a rank has two\nstages, one is half as large.\n\n`megatron "
             "plan RECIPE --draw schedule.svg` draws a recipe's own schedule, `--draw schedule.txt` writes it "
             "as text, and\n`--schedule schedule.txt` runs such a file, also your own.\n\n",
             table, sections));
  return kDone;
}

}  // namespace megatron::app
