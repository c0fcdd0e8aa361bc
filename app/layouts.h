#pragma once
#include <optional>
#include <string>

#include "megatron/config/run_config.h"
#include "megatron/plan/layout_search.h"

namespace megatron::app {

/// What ranks compute on, and the memory that each may take.
struct RanksMachine {
  plan::Hardware hardware;
  double capacity_bytes = 0;
};

/// `hardware`: a file, or the name of one in configs/hardware/. `fit`: "80GB", "1.5e9", "64GiB"; empty: all that the
/// hardware has. Throws ConfigError.
RanksMachine machine_of(const std::string& hardware, const std::string& fit);

/// How many nodes of `hardware` so many ranks need; all have as many ranks where they divide.
int nodes_of(int ranks, const plan::Hardware& hardware);

/// The fastest layouts of `recipe` on such ranks (plan::search_layouts): at least `most`, and at least ten, so that the
/// first is the same whoever asks. Ranks that do not fill their nodes are spread evenly over them where they divide. On
/// `threads` threads. `teacher`: that of distill.teacher; nothing for what recipe::read_teacher() knows. Throws
/// ConfigError where none fits.
plan::LayoutSearch find_layouts(const config::RunConfig& recipe, const RanksMachine& machine, int threads, int most = 1,
                                const std::optional<plan::TeacherNetwork>& teacher = {});

}  // namespace megatron::app
