#include "megatron/interchange/megatron_lm/pickle_names.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "megatron/base/text/format.h"

namespace megatron::interchange {
namespace {

constexpr std::pair<std::uint8_t, const char*> kOpcodes[] = {{'(', "MARK"},
                                                             {'.', "STOP"},
                                                             {'0', "POP"},
                                                             {'1', "POP_MARK"},
                                                             {'2', "DUP"},
                                                             {'F', "FLOAT"},
                                                             {'I', "INT"},
                                                             {'J', "BININT"},
                                                             {'K', "BININT1"},
                                                             {'L', "LONG"},
                                                             {'M', "BININT2"},
                                                             {'N', "NONE"},
                                                             {'P', "PERSID"},
                                                             {'Q', "BINPERSID"},
                                                             {'R', "REDUCE"},
                                                             {'S', "STRING"},
                                                             {'T', "BINSTRING"},
                                                             {'U', "SHORT_BINSTRING"},
                                                             {'V', "UNICODE"},
                                                             {'X', "BINUNICODE"},
                                                             {'a', "APPEND"},
                                                             {'b', "BUILD"},
                                                             {'c', "GLOBAL"},
                                                             {'d', "DICT"},
                                                             {'}', "EMPTY_DICT"},
                                                             {'e', "APPENDS"},
                                                             {'g', "GET"},
                                                             {'h', "BINGET"},
                                                             {'i', "INST"},
                                                             {'j', "LONG_BINGET"},
                                                             {'l', "LIST"},
                                                             {']', "EMPTY_LIST"},
                                                             {'o', "OBJ"},
                                                             {'p', "PUT"},
                                                             {'q', "BINPUT"},
                                                             {'r', "LONG_BINPUT"},
                                                             {'s', "SETITEM"},
                                                             {'t', "TUPLE"},
                                                             {')', "EMPTY_TUPLE"},
                                                             {'u', "SETITEMS"},
                                                             {'G', "BINFLOAT"},
                                                             {'B', "BINBYTES"},
                                                             {'C', "SHORT_BINBYTES"},
                                                             {0x80, "PROTO"},
                                                             {0x81, "NEWOBJ"},
                                                             {0x82, "EXT1"},
                                                             {0x83, "EXT2"},
                                                             {0x84, "EXT4"},
                                                             {0x85, "TUPLE1"},
                                                             {0x86, "TUPLE2"},
                                                             {0x87, "TUPLE3"},
                                                             {0x88, "NEWTRUE"},
                                                             {0x89, "NEWFALSE"},
                                                             {0x8a, "LONG1"},
                                                             {0x8b, "LONG4"},
                                                             {0x8c, "SHORT_BINUNICODE"},
                                                             {0x8d, "BINUNICODE8"},
                                                             {0x8e, "BINBYTES8"},
                                                             {0x8f, "EMPTY_SET"},
                                                             {0x90, "ADDITEMS"},
                                                             {0x91, "FROZENSET"},
                                                             {0x92, "NEWOBJ_EX"},
                                                             {0x93, "STACK_GLOBAL"},
                                                             {0x94, "MEMOIZE"},
                                                             {0x95, "FRAME"},
                                                             {0x96, "BYTEARRAY8"},
                                                             {0x97, "NEXT_BUFFER"},
                                                             {0x98, "READONLY_BUFFER"}};

constexpr std::pair<const char*, const char*> kStorages[] = {
    {"torch.FloatStorage", "F32"},     {"torch.DoubleStorage", "F64"}, {"torch.HalfStorage", "F16"},
    {"torch.BFloat16Storage", "BF16"}, {"torch.LongStorage", "I64"},   {"torch.IntStorage", "I32"},
    {"torch.ShortStorage", "I16"},     {"torch.CharStorage", "I8"},    {"torch.ByteStorage", "U8"},
    {"torch.BoolStorage", "BOOL"}};

using enum NameMeaning;
// What torch.save writes for a dictionary of tensors, and what Megatron-LM's arguments and random states add to it.
constexpr std::pair<const char*, NameMeaning> kNames[] = {
    {"collections.OrderedDict", Dict},
    {"argparse.Namespace", Namespace},
    {"types.SimpleNamespace", Namespace},
    {"torch._utils._rebuild_tensor_v2", Tensor},
    {"torch._tensor._rebuild_from_type_v2", OfType},
    {"torch.Tensor", Value},
    {"torch.nn.parameter.Parameter", Value},
    {"torch._utils._rebuild_parameter", First},
    {"torch._utils._rebuild_parameter_with_state", First},
    {"torch.Size", Tuple},
    {"torch.device", Object},
    {"torch.float16", Value},
    {"torch.float32", Value},
    {"torch.float64", Value},
    {"torch.bfloat16", Value},
    {"torch.int8", Value},
    {"torch.int16", Value},
    {"torch.int32", Value},
    {"torch.int64", Value},
    {"torch.uint8", Value},
    {"torch.bool", Value},
    {"_codecs.encode", Object},
    {"_io.BytesIO", Object},
    {"builtins.set", Object},
    {"builtins.frozenset", Object},
    {"builtins.bytearray", Object},
    {"__builtin__.set", Object},
    {"__builtin__.frozenset", Object},
    {"__builtin__.bytearray", Object},
    {"numpy.core.multiarray._reconstruct", Object},
    {"numpy._core.multiarray._reconstruct", Object},
    {"numpy.core.multiarray.scalar", Object},
    {"numpy._core.multiarray.scalar", Object},
    {"numpy.dtype", Object},
    {"numpy.ndarray", Value},
    {"pathlib.PosixPath", Object},
    {"pathlib._local.PosixPath", Object},
    {"signal.Signals", Object},
    // How Python 3.11 writes a member of an enumeration: what is called is its class and its name, which are data here.
    {"builtins.getattr", Object},
    {"__builtin__.getattr", Object},
    {"megatron.core.enums.ModelType", Object},
    {"megatron.model.enums.ModelType", Object},
    {"megatron.core.transformer.enums.AttnBackend", Object},
    {"megatron.core.transformer.enums.AttnMaskType", Object},
    {"megatron.core.rerun_state_machine.RerunDiagnostic", Object},
    {"megatron.core.rerun_state_machine.RerunMode", Object},
    {"megatron.core.rerun_state_machine.RerunState", Object},
    // What torch.distributed.checkpoint's .metadata is made of.
    {"torch.distributed.checkpoint.metadata.Metadata", Object},
    {"torch.distributed.checkpoint.metadata.MetadataIndex", Object},
    {"torch.distributed.checkpoint.metadata.TensorStorageMetadata", Object},
    {"torch.distributed.checkpoint.metadata.BytesStorageMetadata", Object},
    {"torch.distributed.checkpoint.metadata.ChunkStorageMetadata", Object},
    {"torch.distributed.checkpoint.metadata.TensorProperties", Object},
    {"torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING", Object},
    {"torch.distributed.checkpoint.metadata.StorageMeta", Object},
    {"torch.distributed.checkpoint.filesystem._StorageInfo", Object},
    {"torch.distributed.checkpoint.planner.SavePlan", Object},
    {"torch.distributed.checkpoint.planner.WriteItem", Object},
    {"torch.distributed.checkpoint.planner.WriteItemType", Object},
    {"torch.distributed.checkpoint.planner.TensorWriteData", Object},
    {"torch.distributed._shard.sharded_tensor.metadata.TensorProperties", Object},
    {"torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING", Object},
    {"torch.serialization._get_layout", Object},
    {"megatron.core.dist_checkpointing.strategies.torch.MCoreMetadata", Object},
    {"megatron.core.dist_checkpointing.strategies.torch.MCoreSavePlan", Object}};

}  // namespace

std::string opcode_name(std::uint8_t opcode) {
  const std::string number = fmt::format("0x{:02x}", opcode);
  const auto* found =
      std::find_if(std::begin(kOpcodes), std::end(kOpcodes), [&](const auto& known) { return known.first == opcode; });
  return found == std::end(kOpcodes) ? number : std::string(found->second) + " (" + number + ")";
}

const char* storage_dtype(std::string_view name) {
  for (const auto& [storage, dtype] : kStorages)
    if (name == storage) return dtype;
  return nullptr;
}

NameMeaning meaning_of(std::string_view name) {
  if (storage_dtype(name) != nullptr) return Value;
  for (const auto& [known, meaning] : kNames)
    if (name == known) return meaning;
  // Megatron-LM's exit_signal, which some versions of Python write by its name: signal.SIGTERM.
  constexpr std::string_view kSignal = "signal.SIG";
  const bool is_signal = name.starts_with(kSignal) && name.size() <= kSignal.size() + 8 &&
                         std::ranges::all_of(name.substr(kSignal.size()), [](char c) { return c >= 'A' && c <= 'Z'; });
  return is_signal ? Value : Unknown;
}

}  // namespace megatron::interchange
