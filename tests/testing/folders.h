#pragma once
#include <string>

namespace megatron {

/// The folder tests/ of the source tree. A function, not a macro of every file: its text would keep a compiler cache
/// from serving another checkout.
std::string tests_folder();

/// What the build unpacked from tests/golden/packed.tar.xz: data/ and golden/.
std::string unpacked_folder();

/// A file of whole data, of which the tree holds a part at most, in the folder that MEGATRON_TEST_DATA names; empty
/// where it names none.
std::string whole_data(const std::string& name);

}  // namespace megatron
