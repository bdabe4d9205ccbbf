/// A program outside the tree, which has nothing but what `meson install` installed: consumer SOURCE.
#include <cstdio>

#include "glu_ckpt/checkpoint.hpp"
#include "glu_ckpt/layout.hpp"

int main(int, char** argv) {
  const auto source = glu_ckpt::open_source(argv[1]);
  std::printf("%zu tensors\n", source->inventory().tensors.size());
}
