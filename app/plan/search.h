#pragma once
#include <string>

#include "app/jobs.h"
#include "megatron/config/options.h"

namespace megatron::app {

/// The options of `megatron plan --search`.
struct SearchFlags {
  bool search = false;
  std::string hardware = "dgx-h100", fit, svg;
  int top = 10;
  double tokens = 0, gpu_hour_price = 0;

  void visit(auto& v) {
    v("search", search,
      "Which layout? Tries those that the rules allow on --world-size ranks (tp, cp and its way, ep, pp, dp, …), and "
      "prints the fastest that fit.",
      config::Common());
    v("hardware", hardware,
      "With --search or --traffic: a file of rates, or the name of one in configs/hardware/ without .toml.",
      config::Common());
    v("fit", fit, "With --search: memory that a rank may take, as 80GB; empty: all that the hardware has.",
      config::Common());
    v("top", top, "With --search: how many layouts are printed.");
    v("tokens", tokens, "With --search: tokens to train on, for the days that it takes; 0: those of the recipe.");
    v("gpu_hour_price", gpu_hour_price,
      "With --search: price of a GPU's hour, in any currency, for what --tokens cost; 0: costs are not said.");
    v("svg", svg, "With --search: picture of speed and memory of the layouts that were looked at.");
  }
};

int plan_search(const Args& args);

}  // namespace megatron::app
