#include "megatron/families/hf_family.h"

// GPTs as folders of Hugging Face: a row and a file in families/ for each family.
namespace megatron::models::gpt {

extern const families::HfFamily kGpt2, kLlama, kExperts, kGemma, kOlmo, kPhi, kNeoX, kStarCoder, kOss, kDeepseek,
    kFalcon;

namespace {

constexpr const families::HfFamily* kFamilies[] = {&kGpt2, &kLlama,     &kExperts, &kGemma,    &kOlmo,  &kPhi,
                                                   &kNeoX, &kStarCoder, &kOss,     &kDeepseek, &kFalcon};

}  // namespace

extern const families::ModelFolders kFolders;
constinit const families::ModelFolders kFolders{.families = kFamilies};

}  // namespace megatron::models::gpt
