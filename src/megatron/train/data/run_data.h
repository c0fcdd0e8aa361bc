#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/plan/rules.h"
#include "megatron/train/data/batches.h"

namespace megatron::train {

/// A dataset and what its figures are called; one of several has a name.
struct NamedData {
  std::string name;
  DatasetBatches batches;
};

/// What a rank reads.
struct RunData {
  std::vector<NamedData> train, valid, test;
};

/// Opens the recipe's data; `eod`: the token that ends a document. Indices are built by whichever process comes first;
/// ranks meet meanwhile, however long that takes. Rank 0 says on the log what is waited for. Throws as
/// comm::run_on_every_rank(), ConfigError of data that cannot be read among them. Collective over `world`.
RunData open_data(const plan::ResolvedRun& run, std::int64_t eod, const comm::Group& world);

}  // namespace megatron::train
