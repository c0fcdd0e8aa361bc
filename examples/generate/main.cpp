// Writes on from a prompt with a model in a Hugging Face folder, a run's folder or a checkpoint:
//   generate FOLDER PROMPT [RANKS]
#include <iostream>
#include <string>

#include "megatron/base/error.h"
#include "megatron/generate/generate.h"
#include "megatron/run/exit_codes.h"
#include "megatron/run/ranks.h"
#include "megatron/run/trained_model.h"
#include "megatron/text/texts.h"

int main(int argc, char** argv) {
  using namespace megatron;
  if (argc < 3) return std::cerr << "generate FOLDER PROMPT [RANKS]\n", 2;
  try {
    run::ModelFlags flags;
    flags.load = argv[1];
    if (argc > 3) flags.tp = std::stoi(argv[3]);  // ranks that split each matrix
    const run::TrainedModel model = run::open_trained_model(flags, "generate");
    const auto prompt = model.tokenizer.encode(argv[2], text::Specials::Recognised);
    const generate::GenerateOptions options{.max_new_tokens = 20, .sampling = {.temperature = 0}, .ends = model.ends};

    return run::run_on_ranks(model.run, std::nullopt, [&](const comm::Group& world, at::Device device) {
      const run::RankModel rank = run::load_rank(model, world, device, model.run.shape.max_positions);
      const generate::StagedModel staged(
          model::CachedGpt(rank.options, rank.part, rank.parameters, rank.context.tensor()), rank.context.pipeline(),
          rank.tensor());
      const auto texts = generate::generate(staged, {{prompt.begin(), prompt.end()}}, options);
      const auto ids = text::ids_with_text(model.tokenizer, texts[0], options.ends);
      if (world.rank() == 0) std::cout << argv[2] << text::text_after(model.tokenizer, prompt, ids) << "\n";
      return run::kDone;
    });
  } catch (const std::exception& error) {
    return std::cerr << error.what() << "\n", 1;
  }
}
