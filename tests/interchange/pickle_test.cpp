#include "megatron/interchange/megatron_lm/pickle.h"

#include "megatron/interchange/megatron_lm/torch_file.h"
#include "tests/interchange/support.h"
#include "tests/testing/folders.h"

namespace megatron::interchange {
namespace {

using Kind = PickleNode::Kind;
using namespace std::string_literals;

Pickle read(const std::string& bytes) { return read_pickle(std::as_bytes(std::span(bytes)), "data.pkl"); }

void expect_pickle_refused(const std::string& bytes, const std::vector<std::string>& words) {
  expect_refused([&] { read(bytes); }, words);
}

const std::string kProtocol = "\x80\x02"s;

/// A short text.
std::string text(const std::string& value) { return "U" + std::string(1, static_cast<char>(value.size())) + value; }
/// A whole number of one byte.
std::string number(int value) { return "K" + std::string(1, static_cast<char>(value)); }
/// ('storage', torch.FloatStorage, '0', 'cpu', elements)
std::string storage(int elements) {
  return "(" + text("storage") + "ctorch\nFloatStorage\n" + text("0") + text("cpu") + number(elements) + "tQ";
}
/// A tensor on it.
std::string tensor(int elements, int first, const std::string& shape, const std::string& strides) {
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + storage(elements) + number(first) + shape + strides + "\x89" + "N" +
         "tR";
}

TEST(Pickle, ReadsNumbersTextsAndContainers) {
  // {'a': [1, -2, 2.5, True, None], 'b': ('x',), 'c': 1 << 40}, as Python 3.11's pickle.dumps(…, 2) writes it.
  const Pickle pickle = read(
      "\x80\x02}q\x00(X\x01\x00\x00\x00\x61q\x01]q\x02(K\x01J\xfe\xff\xff\xffG@\x04\x00\x00\x00\x00\x00\x00\x88"
      "NeX\x01\x00\x00\x00\x62q\x03X\x01\x00\x00\x00xq\x04\x85q\x05X\x01\x00\x00\x00\x63q\x06\x8a\x06\x00\x00\x00\x00"
      "\x00\x01u."s);
  const PickleNode& root = pickle[pickle.root];
  const PickleNode* list = pickle.find(root, "a");
  ASSERT_NE(list, nullptr);
  ASSERT_EQ(list->items.size(), 5u);
  EXPECT_EQ(pickle[list->items[0]].integer, 1);
  EXPECT_EQ(pickle[list->items[1]].integer, -2);
  EXPECT_EQ(pickle[list->items[2]].number, 2.5);
  EXPECT_EQ(pickle[list->items[3]].kind, Kind::Bool);
  EXPECT_EQ(pickle[list->items[4]].kind, Kind::None);
  EXPECT_EQ(pickle[pickle.find(root, "b")->items[0]].text, "x");
  EXPECT_EQ(pickle.find(root, "c")->integer, std::int64_t{1} << 40);
  EXPECT_EQ(pickle.find(root, "d"), nullptr);
}

/// A tensor with attributes: of a function, its arguments (a tuple) and an attribute.
std::string tensor_of_type(const std::string& function, const std::string& arguments) {
  return "ctorch._tensor\n_rebuild_from_type_v2\n(c" + function + "\nctorch\nTensor\n" + arguments + "}" +
         text("shared") + "\x88s" + "tR.";
}

TEST(Pickle, ATensorWithAttributesIsTheTensor) {
  const std::string arguments = "(" + storage(6) + number(1) + "K\x02\x85" + "K\x01\x85" + "\x89" + "Nt";
  const Pickle pickle = read("\x80\x02" + tensor_of_type("torch._utils\n_rebuild_tensor_v2", arguments));
  EXPECT_EQ(pickle[pickle.root].kind, Kind::Tensor);
  EXPECT_EQ(pickle[pickle.root].extents, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(pickle[pickle.root].integer, 1);
  expect_pickle_refused("\x80\x02" + tensor_of_type("os\nsystem", arguments), {"\"os.system\""});
  expect_pickle_refused("\x80\x02" + tensor_of_type("builtins\ngetattr", arguments), {"builtins.getattr"});
  expect_pickle_refused("\x80\x02" + tensor_of_type("torch._tensor\n_rebuild_from_type_v2", arguments),
                        {"_rebuild_from_type_v2"});
  expect_pickle_refused("\x80\x02" + tensor_of_type("torch._utils\n_rebuild_tensor_v2", number(1)), {"arguments"});
  expect_pickle_refused("\x80\x02" + tensor_of_type("torch._utils\n_rebuild_tensor_v2", ")"), {"storage"});
}

TEST(Pickle, RefusesCallsOfAnythingElse) {
  expect_pickle_refused(
      "\x80\x02"
      "cos\nsystem\nX\x02\x00\x00\x00id\x85R."s,
      {"\"os.system\"", "GLOBAL", "byte 2"});
  expect_pickle_refused(
      "\x80\x02"
      "cbuiltins\neval\n."s,
      {"\"builtins.eval\""});
  expect_pickle_refused("\x80\x04\x8c\x05posix\x8c\x06system\x93."s, {"\"posix.system\"", "STACK_GLOBAL"});
  expect_pickle_refused(
      "\x80\x02"
      "ctorch.hub\nload\n."s,
      {"\"torch.hub.load\""});
  expect_pickle_refused("\x80\x02(ios\nsystem\n."s, {"INST (0x69)"});
  expect_pickle_refused("\x80\x02(cos\n"s, {"end of the pickle"});
  expect_pickle_refused("(dp0\n."s, {"DICT (0x64)"});
  expect_pickle_refused("\x80\x02N\x82\x01."s, {"EXT1 (0x82)"});
  expect_pickle_refused("\x80\x02Pabc\n."s, {"PERSID (0x50)"});
  expect_pickle_refused("\x80\x02\xff."s, {"0xff"});
  // A name that is known is not a function that is called.
  expect_pickle_refused(kProtocol + "ctorch\nfloat32\n)R.", {"a call of \"torch.float32\""});
  expect_pickle_refused(kProtocol + "cnumpy\nndarray\n)R.", {"a call of \"numpy.ndarray\""});
}

TEST(Pickle, ShowsHostileNamesHarmlessly) {
  expect_pickle_refused(
      "\x80\x02"
      "c\x1b[31mos\nsys\x07tem\n."s,
      {"\"\\x1b[31mos.sys\\x07tem\""});
}

TEST(Pickle, RefusesADamagedStack) {
  for (const std::string& body : {"."s, "R."s, "t."s, "u."s, "}u."s, "(0."s, "K\x01\x85q"s, "h\x05."s, "(K\x01s."s,
                                  "]K\x01K\x01s."s, "}(K\x01u."s, "N}b."s, "K\x01Q."s, "\x93."s,
                                  "X\xff\xff\xff\xff"
                                  "abc."s,
                                  "N"s, "N.N."s})
    EXPECT_NE(refusal([&] { read(kProtocol + body); }), "") << body;
  expect_pickle_refused("\x80\x06N."s, {"protocol 6"});
  expect_pickle_refused("", {"end of the pickle"});
}

TEST(Pickle, RemembersNoMoreThanItsValuesMayBe) {
  const std::string one = "\x80\x04N";
  expect_pickle_refused(one + std::string((std::size_t{1} << 22) + 1, '\x94') + ".", {"remembered", "MEMOIZE"});
  EXPECT_EQ(refusal([&] { read(one + std::string(1000, '\x94') + "."); }), "");
}

TEST(Pickle, ATensorMustLieInItsStorage) {
  const std::string two_by_three = "(" + number(2) + number(3) + "t", dense = "(" + number(3) + number(1) + "t";
  const Pickle pickle = read(kProtocol + tensor(7, 1, two_by_three, dense) + ".");
  const PickleNode& node = pickle[pickle.root];
  EXPECT_EQ(node.kind, Kind::Tensor);
  EXPECT_EQ(node.extents, (std::vector<std::int64_t>{2, 3, 3, 1}));
  EXPECT_EQ(node.integer, 1);
  EXPECT_STREQ(pickle[node.items[0]].dtype, "F32");
  expect_pickle_refused(kProtocol + tensor(6, 1, two_by_three, dense) + ".", {"past its storage"});
  const std::string repeated = "(" + number(0) + number(1) + "t";
  expect_pickle_refused(kProtocol + tensor(3, 0, two_by_three, repeated) + ".", {"repeats elements"});
  const std::string huge = "(J\xff\xff\xff\x7fJ\xff\xff\xff\x7fJ\xff\xff\xff\x7ft",
                    zeros = "(" + number(0) + number(0) + number(0) + "t";
  expect_pickle_refused(kProtocol + tensor(3, 0, huge, zeros) + ".", {"repeats elements"});
  expect_pickle_refused(kProtocol + tensor(9, 0, two_by_three, number(3) + "\x85") + ".", {"number of strides"});
  expect_pickle_refused(kProtocol + tensor(9, 0, "J\xff\xff\xff\xff\x85", number(1) + "\x85") + ".", {"no sizes"});
  const std::string endless = "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"s;  // 2^63 - 1
  expect_pickle_refused(kProtocol + tensor(9, 0, "(" + endless + endless + "t", "(" + endless + endless + "t") + ".",
                        {"past its storage"});
}

TEST(Pickle, CopiesOfACopyDoNotAddUp) {
  // A list of 256 items, again and again as the argument of an OrderedDict.
  std::string bytes = kProtocol + "](";
  for (int i = 0; i < 256; ++i) bytes += "(" + number(1) + number(2) + "t";
  bytes += "eq\x01";
  for (int i = 0; i < 100'000; ++i) bytes += "ccollections\nOrderedDict\nh\x01\x85R";
  expect_pickle_refused(bytes + ".", {"items"});
}

TEST(Pickle, AValueMayContainItself) {
  const Pickle pickle = read(kProtocol + "]q\x01h\x01" + "a.");
  EXPECT_EQ(pickle[pickle.root].items, std::vector<std::uint32_t>{pickle.root});
}

/// A file that torch.save wrote, with one of its bytes changed.
struct ChangedFile {
  TemporaryFolder folder;
  std::string bytes = read_file(std::filesystem::path(unpacked_folder()) /
                                "interchange/gpt2/release/mp_rank_00_000/model_optim_rng.pt");
  std::string refused() {
    write_file(folder.path() / "x.pt", bytes);
    return refusal([&] { TorchFile file(folder.path() / "x.pt"); });
  }
};

TEST(TorchFile, IsReadWithItsRandomStatesAndArguments) {
  const TorchFile file(std::filesystem::path(unpacked_folder()) /
                       "interchange/gpt2/release/mp_rank_00_000/model_optim_rng.pt");
  const PickleNode* args = file.values().find(file.root(), "args");
  ASSERT_NE(args, nullptr);
  EXPECT_EQ(file.values().find(*args, "hidden_size")->integer, 8);
  EXPECT_EQ(file.values().find(*args, "norm_epsilon")->number, 1e-5);
  EXPECT_EQ(file.values().find(*args, "params_dtype")->text, "torch.float32");
  EXPECT_EQ(file.values().find(*args, "exit_signal")->kind, Kind::Object);
  EXPECT_EQ(file.values().find(file.root(), "checkpoint_version")->number, 3.0);
}

TEST(TorchFile, ADamagedArchiveIsRefused) {
  ChangedFile cut, end, local, central, twice;
  cut.bytes.resize(cut.bytes.size() / 2);
  EXPECT_NE(cut.refused().find("end of the archive's directory"), std::string::npos) << cut.refused();
  end.bytes.replace(end.bytes.rfind("PK\6\6") + 48, 4, "\xff\xff\xff\x7f");  // where the directory begins
  EXPECT_NE(end.refused(), "");
  local.bytes.replace(0, 4, "abcd");
  EXPECT_NE(local.refused().find("no local header"), std::string::npos) << local.refused();
  const std::size_t record = central.bytes.rfind("PK\1\2");
  central.bytes[record + 10] = 8;  // the method: deflate
  EXPECT_NE(central.refused().find("compressed"), std::string::npos) << central.refused();
  const std::size_t other = twice.bytes.rfind("PK\1\2", twice.bytes.rfind("PK\1\2") - 1);
  twice.bytes.replace(twice.bytes.rfind("PK\1\2") + 42, 4, twice.bytes.substr(other + 42, 4));  // the other's header
  EXPECT_NE(twice.refused(), "");
  ChangedFile same;
  EXPECT_EQ(same.refused(), "");
}

}  // namespace
}  // namespace megatron::interchange
