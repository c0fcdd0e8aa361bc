#include "megatron/generate/load.h"

#include "megatron/checkpoint/weights.h"
#include "megatron/interchange/weights.h"

namespace megatron::generate {

void load_weights(const std::filesystem::path& folder, const parallel::ParameterStore& parameters,
                  const plan::ModelShape& shape, bool strict) {
  checkpoint::load_weights(*interchange::open_weights(folder), parameters, shape, strict);
}

}  // namespace megatron::generate
