#include "megatron/study/traffic_picture.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/base/text/format.h"
#include "megatron/charts/flow_chart.h"

namespace megatron::study {
namespace {

using plan::kTrafficNames;
using plan::Traffic;

constexpr int kMostPlaces = 64;

/// Ranks that have one row together.
struct TrafficPlaces {
  int ranks = 1;                         ///< of a place
  std::string what = {};                 ///< "rank", "node", "nodes"
  std::vector<std::string> labels = {};  ///< of all

  std::size_t of(int rank) const { return static_cast<std::size_t>(rank / ranks); }
  std::string name(std::size_t place) const { return concat(what, " ", labels[place]); }
};

TrafficPlaces places_of(int ranks, int ranks_per_node) {
  TrafficPlaces places{.what = "rank"};
  int nodes_each = 0;
  if (ranks > kMostPlaces) {
    const int nodes = (ranks + ranks_per_node - 1) / ranks_per_node;
    nodes_each = (nodes + kMostPlaces - 1) / kMostPlaces;
    places.ranks = nodes_each * ranks_per_node;
    places.what = nodes_each == 1 ? "node" : "nodes";
  }
  for (int i = 0; i * places.ranks < ranks; ++i)
    places.labels.push_back(nodes_each > 1 ? concat(i * nodes_each, "-", (i + 1) * nodes_each - 1) : std::to_string(i));
  return places;
}

/// "1.23 ms".
std::string time_text(double seconds) {
  if (seconds >= 1) return fmt::format("{:.3g} s", seconds);
  return seconds >= 1e-3 ? fmt::format("{:.3g} ms", 1e3 * seconds) : fmt::format("{:.3g} us", 1e6 * seconds);
}

/// What goes over one sort of link, by kind: of all senders, and of that which sends most.
charts::FlowSum sum_of(const std::vector<Traffic>& traffic, const plan::Hardware& hardware, bool leaves) {
  const auto per_node = static_cast<int>(hardware.ranks_per_node);
  const plan::LinkRates& link = leaves ? hardware.cluster : hardware.node;
  charts::FlowSum sum{.heading = leaves ? "between nodes (busiest node)" : "within a node (busiest rank)"};
  std::array<std::map<int, double>, kTrafficNames.size()> senders;
  for (const Traffic& one : traffic) {
    if ((one.from / per_node != one.to / per_node) != leaves) continue;
    senders[static_cast<std::size_t>(one.kind)][leaves ? one.from / per_node : one.from] += one.bytes;
  }
  for (const auto& of_kind : senders) {
    double most = 0;
    for (const auto& [sender, bytes] : of_kind) most = std::max(most, bytes);
    sum.values.push_back(most);
    sum.texts.push_back(most > 0 ? concat(human_bytes(most), ", ", time_text(most / link.bytes_per_s())) : "-");
  }
  return sum;
}

}  // namespace

std::string traffic_svg(const std::vector<Traffic>& traffic, int ranks, const plan::Hardware& hardware,
                        const std::string& title) {
  const auto per_node = static_cast<int>(hardware.ranks_per_node);
  const TrafficPlaces places = places_of(ranks, per_node);
  charts::FlowChart chart{
      .title = title,
      .kinds = {kTrafficNames.begin(), kTrafficNames.end()},
      .from = concat("from ", places.what),
      .to = concat("to ", places.what),
      .places = places.labels,
      .block = places.ranks == 1 ? static_cast<std::size_t>(std::min(per_node, ranks)) : 0,
      .note = concat("bytes of one step; a stripe for each kind, deeper for more; times at the rates of ",
                     hardware.name, ", without latency")};
  chart.sums = {sum_of(traffic, hardware, false), sum_of(traffic, hardware, true)};
  std::map<std::tuple<std::size_t, std::size_t, std::size_t>, double> pairs;
  for (const Traffic& one : traffic)
    pairs[{places.of(one.from), places.of(one.to), static_cast<std::size_t>(one.kind)}] += one.bytes;
  for (const auto& [key, bytes] : pairs) {
    const auto& [from, to, kind] = key;
    chart.flows.push_back(
        {from, to, kind, bytes,
         from == to
             ? concat("within ", places.name(from), ": ", kTrafficNames[kind], " ", human_bytes(bytes))
             : concat(places.name(from), " to ", places.name(to), ": ", kTrafficNames[kind], " ", human_bytes(bytes))});
  }
  return draw_flows(chart);
}

}  // namespace megatron::study
