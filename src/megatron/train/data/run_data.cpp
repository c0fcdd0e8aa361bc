#include "megatron/train/data/run_data.h"

#include <filesystem>

#include "megatron/base/log.h"
#include "megatron/comm/first_rank.h"
#include "megatron/train/inputs.h"
#include "megatron/train/iteration.h"

namespace megatron::train {
namespace {

std::vector<NamedData> open_parts(const plan::ResolvedRun& run, data::SplitPart part, std::int64_t eod,
                                  const SampleTools& tools, const data::WaitMessage& say) {
  std::vector<NamedData> sets;
  const auto specs = part_specs(run, part, eod, tools);
  for (const data::PartSpec& spec : specs) {
    const std::string name = specs.size() == 1 ? "" : std::filesystem::path(spec.blend.prefixes[0]).filename().string();
    sets.push_back({name, {data::open_part(spec, say), run.shape.vocab, loss_type(run.config)}});
    const config::DataConfig& options = run.config.data;
    if (options.dataloader_type == "cyclic" && !(part == data::SplitPart::Valid && options.full_validation))
      sets.back().batches.take_cyclically(options.cyclic_batch);
  }
  return sets;
}

}  // namespace

RunData open_data(const plan::ResolvedRun& run, std::int64_t eod, const comm::Group& world) {
  RunData data;
  data::WaitMessage say;  // the first rank speaks for all
  if (world.rank() == 0) say = [](const std::string& text) { Logger("rank 0").info(text); };
  comm::run_on_every_rank(
      world,
      [&] {
        const SampleTools tools = load_tools(run.config);
        data = {.train = open_parts(run, data::SplitPart::Train, eod, tools, say),
                .valid = open_parts(run, data::SplitPart::Valid, eod, tools, say),
                .test = open_parts(run, data::SplitPart::Test, eod, tools, say)};
      },
      beat_of(run.config));
  return data;
}

}  // namespace megatron::train
