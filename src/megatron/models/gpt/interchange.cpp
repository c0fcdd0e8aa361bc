#include "megatron/interchange/hugging_face/hf_family.h"

// GPTs as folders of Hugging Face: a row and a file in interchange/ for each family.
namespace megatron::models::gpt {

extern const interchange::HfFamily kGpt2, kLlama, kExperts, kGemma, kOlmo, kPhi, kNeoX, kStarCoder, kOss, kDeepseek,
    kFalcon;

namespace {

constexpr const interchange::HfFamily* kFamilies[] = {&kGpt2, &kLlama,     &kExperts, &kGemma,    &kOlmo,  &kPhi,
                                                      &kNeoX, &kStarCoder, &kOss,     &kDeepseek, &kFalcon};

}  // namespace

extern const interchange::ModelFolders kFolders;
constinit const interchange::ModelFolders kFolders{.families = kFamilies};

}  // namespace megatron::models::gpt
