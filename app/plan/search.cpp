#include "app/plan/search.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "app/json_line.h"
#include "app/layouts.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/machine/cores.h"
#include "megatron/base/progress.h"
#include "megatron/charts/scatter_chart.h"
#include "megatron/config/run_config.h"
#include "megatron/plan/cost/recomputation.h"
#include "megatron/plan/layout_search.h"

namespace megatron::app {
namespace {

using nlohmann::ordered_json;

constexpr const char* kUsage = "megatron plan RECIPE.toml --search --world-size N [--hardware NAME] [--fit 80GB]";

struct Options {
  config::RunConfig run;
  SearchFlags flags;
  bool as_json = false;
  std::string device = {};  ///< which the run is planned for
  void visit(auto& v) {
    v("json", as_json, "Print one JSON object.");
    flags.visit(v);
    run.visit(v);
  }
};

/// What makes the layout of the recipe, on a command line.
std::string flags_of(const Options& options, const plan::LayoutChoice& choice) {
  const bool says_device = options.run.parallel.device == options.device;
  return concat(plan::flags_of(options.run, choice), says_device ? "" : concat(" --device ", options.device));
}

/// `word` as a shell reads it.
std::string shell_word(const std::string& word) {
  const bool plain = !word.empty() && std::ranges::all_of(word, [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("-_=+.,:/@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string sharding_text(const std::string& sharding) {
  return sharding.empty() ? "-" : sharding == "optim" ? "ZeRO-1" : sharding == "optim_grads" ? "ZeRO-2" : "ZeRO-3";
}

/// "fit 12": of so many layers.
std::string recompute_text(const plan::FoundLayout& layout) {
  return layout.choice.recompute == plan::kFitLayers ? concat("fit ", layout.recomputed) : layout.choice.recompute;
}

int etp_of(const plan::LayoutChoice& choice) { return choice.etp > 0 ? choice.etp : choice.tp; }

std::string stages_text(const plan::LayoutChoice& choice) {
  return choice.pp == 1 ? "-" : choice.stages.empty() ? "equal" : choice.stages;
}

/// "4 allgather": ranks that share sequences, and how.
std::string sequences_text(const plan::LayoutChoice& choice) {
  return choice.cp == 1 ? "-" : concat(choice.cp, " ", choice.cp_comm_type);
}

double days_of(const plan::FoundLayout& layout, double tokens) { return tokens / layout.tokens_per_s / 86400; }

/// What the tokens cost; 0 where no price is said.
double price_of(const plan::FoundLayout& layout, const Options& options, double tokens) {
  return 24 * days_of(layout, tokens) * options.run.parallel.world_size * options.flags.gpu_hour_price;
}

/// The share of a step in which ranks wait for collectives; the pipeline's messages are in its bubble.
double exposed_communication(const plan::StepCost& cost) { return (cost.parts.tensor + cost.parts.data) / cost.step_s; }

ordered_json row_of(const plan::FoundLayout& layout, const Options& options, double tokens) {
  ordered_json parts;
  for (const auto& [name, seconds] : layout.cost.parts.named()) parts[name] = 1e3 * seconds;
  const plan::LayoutChoice& choice = layout.choice;
  ordered_json row{{"tp", choice.tp},
                   {"cp", choice.cp},
                   {"cp_comm_type", choice.cp_comm_type},
                   {"ep", choice.ep},
                   {"etp", etp_of(choice)},
                   {"pp", choice.pp},
                   {"vpp", choice.vpp},
                   {"dp", layout.dp},
                   {"micro_batch_size", choice.micro_batch_size},
                   {"microbatches", layout.microbatches},
                   {"schedule", choice.schedule},
                   {"stage_layers", layout.stage_layers},
                   {"recompute", choice.recompute},
                   {"recomputed_layers", layout.recomputed},
                   {"sharding", choice.sharding},
                   {"tokens_per_s", layout.tokens_per_s},
                   {"mfu", layout.cost.utilization},
                   {"step_ms", 1e3 * layout.cost.step_s},
                   {"memory_bytes", layout.held_bytes()},
                   {"gathered_bytes", layout.gathered_bytes},
                   {"exposed_communication", exposed_communication(layout.cost)},
                   {"days", days_of(layout, tokens)},
                   {"parts_ms", parts},
                   {"flags", flags_of(options, choice)}};
  if (options.flags.gpu_hour_price > 0) row["price"] = price_of(layout, options, tokens);
  return row;
}

/// What costs `b` most against `a`: "pipeline +12 ms, tensor +3 ms"; "" where each part differs by less than is shown.
std::string losses(const plan::FoundLayout& a, const plan::FoundLayout& b) {
  std::vector<std::pair<double, std::string>> parts;
  const auto of_a = a.cost.parts.named(), of_b = b.cost.parts.named();
  for (std::size_t i = 0; i < of_a.size(); ++i)
    parts.emplace_back(1e3 * (of_b[i].second - of_a[i].second), of_a[i].first);
  std::ranges::sort(parts, std::greater());
  std::string text;
  for (std::size_t i = 0; i < 2 && parts[i].first > 0.05; ++i)
    text += formatted("{}{} {:+.1f} ms", i > 0 ? ", " : "", parts[i].second, parts[i].first);
  return text;
}

void print_layouts(const plan::LayoutSearch& found, const Options& options, const plan::Hardware& hardware,
                   double tokens) {
  const auto most = std::min(found.layouts.size(), static_cast<std::size_t>(options.flags.top));
  print("{} ranks of {}: {} layouts keep the rules of divisors, {} were planned{}\n\n", options.run.parallel.world_size,
        hardware.name, found.allowed, found.evaluated,
        found.complete ? ", the others can be no faster or hold too much" : "; more were not tried");
  const bool priced = options.flags.gpu_hour_price > 0;
  print(
      "{:>3} {:<12} {:>3} {:>3} {:>3} {:>3} {:>4} {:>5} {:>6} {:<12} {:<8} {:<10} {:<7} {:>12} {:>6} {:>10} {:>7} "
      "{:>7} {:>8}{}\n",
      "tp", "cp", "ep", "etp", "pp", "vpp", "dp", "micro", "of", "schedule", "stages", "recompute", "shards",
      "tokens/s", "MFU", "memory", "bubble", "comm", "days", priced ? formatted(" {:>12}", "price") : "");
  for (std::size_t i = 0; i < most; ++i) {
    const plan::FoundLayout& each = found.layouts[i];
    print(
        "{:>3} {:<12} {:>3} {:>3} {:>3} {:>3} {:>4} {:>5} {:>6} {:<12} {:<8} {:<10} {:<7} {:>12.0f} {:>5.1f}% {:>10} "
        "{:>6.1f}% {:>6.1f}% {:>8.2f}{}\n",
        each.choice.tp, sequences_text(each.choice), each.choice.ep, etp_of(each.choice), each.choice.pp,
        each.choice.vpp, each.dp, each.choice.micro_batch_size, each.microbatches,
        each.choice.schedule.empty() ? "-" : each.choice.schedule, stages_text(each.choice), recompute_text(each),
        sharding_text(each.choice.sharding), each.tokens_per_s, 100 * each.cost.utilization,
        human_bytes(static_cast<double>(each.held_bytes())), 100 * each.cost.parts.pipeline / each.cost.step_s,
        100 * exposed_communication(each.cost), days_of(each, tokens),
        priced ? formatted(" {:>12.0f}", price_of(each, options, tokens)) : "");
  }
  const plan::FoundLayout& best = found.layouts[0];
  print("\nThe first loses least: of a step of {:.1f} ms", 1e3 * best.cost.step_s);
  for (const auto& [name, seconds] : best.cost.parts.named())
    if (seconds > 0.005 * best.cost.step_s) print(", {} {:.1f}", name, 1e3 * seconds);
  print_text("\n");
  if (most > 1) {
    const std::string why = losses(best, found.layouts[1]);
    print("The second takes {:.1f} % longer{}\n", 100 * (found.layouts[1].cost.step_s / best.cost.step_s - 1),
          why.empty() ? "" : ": " + why);
  }
}

}  // namespace

int plan_search(const Args& args) {
  Options options;
  const auto command = config::parse_recipe_command(options, &Options::run, args, kUsage);
  if (!options.flags.search)
    throw ConfigError(rule_got_fix("--search is on where it is given.", "--search false", "leave --search out"));
  if (options.flags.top < 1 || options.flags.top > 1000)
    throw ConfigError(rule_got_fix("--top must be 1 to 1000.", concat(options.flags.top), "--top 10"));
  if (!(options.flags.gpu_hour_price >= 0 && options.flags.gpu_hour_price < 1e9))
    throw ConfigError(rule_got_fix("--gpu-hour-price must be 0 or more.", concat(options.flags.gpu_hour_price),
                                   "--gpu-hour-price 2.5"));
  if (!(options.flags.tokens >= 0 && options.flags.tokens < 1e30))
    throw ConfigError(rule_got_fix("--tokens must be 0 or more.", concat(options.flags.tokens), "--tokens 300e9"));
  const int ranks = options.run.parallel.world_size;
  if (ranks == 0)
    throw ConfigError(rule_got_fix("--search needs the number of ranks.", "no --world-size", "--world-size 8"));
  const RanksMachine machine = machine_of(options.flags.hardware, options.flags.fit);
  const plan::Hardware& hardware = machine.hardware;
  options.device = hardware.device.empty() ? options.run.parallel.device : hardware.device;
  config::RunConfig recipe = options.run;
  recipe.parallel.device = options.device;
  const plan::LayoutSearch found = find_layouts(recipe, machine, usable_cores(), options.flags.top);
  const double tokens = options.flags.tokens > 0
                            ? options.flags.tokens
                            : static_cast<double>(options.run.train.train_iters * options.run.train.global_batch_size *
                                                  options.run.data.seq_length);
  if (!options.flags.svg.empty()) {
    std::vector<charts::Point> points;
    for (const auto* list : {&found.layouts, &found.too_large})
      for (const plan::FoundLayout& each : *list)
        points.push_back({static_cast<double>(each.held_bytes()) / 1e9, each.tokens_per_s,
                          flags_of(options, each.choice), list == &found.layouts});
    std::vector<charts::Point> frontier;
    for (const plan::FoundLayout& each : plan::pareto(found.layouts))
      frontier.push_back({static_cast<double>(each.held_bytes()) / 1e9, each.tokens_per_s, "", true});
    write_file(options.flags.svg,
               charts::draw_scatter(concat("Layouts of ", command.recipe, " on ", options.run.parallel.world_size,
                                           " ranks of ", hardware.name),
                                    "memory of the fullest rank, GB", "tokens/s", points, frontier));
  }
  if (options.as_json) {
    ordered_json rows = ordered_json::array();
    for (std::size_t i = 0; i < std::min(found.layouts.size(), static_cast<std::size_t>(options.flags.top)); ++i)
      rows.push_back(row_of(found.layouts[i], options, tokens));
    print_json(ordered_json{{"hardware", hardware.name},
                            {"device", options.device},
                            {"world_size", options.run.parallel.world_size},
                            {"capacity_bytes", machine.capacity_bytes},
                            {"allowed", found.allowed},
                            {"evaluated", found.evaluated},
                            {"complete", found.complete},
                            {"layouts", rows}});
    return kDone;
  }
  print_layouts(found, options, hardware, tokens);
  const int nodes = nodes_of(ranks, hardware);
  const std::string train =
      concat("megatron train ", shell_word(command.recipe), " ", flags_of(options, found.layouts[0].choice));
  if (ranks % nodes == 0)
    print("\ntorchrun --nnodes {} --nproc-per-node {} --no-python {}\n", nodes, ranks / nodes, train);
  else
    print("\n{} ranks are not the same number on each of {} nodes; started on nodes of your choice:\n{}\n", ranks,
          nodes, train);
  return kDone;
}

}  // namespace megatron::app
