/// A program outside the tree, which has nothing but what `meson install` installed: consumer SOURCE DST. README's
/// example converts; called again, it finds that all is done.

#include <iostream>

// README's example, as run_install.sh found it there.
#include "example.hpp"

int main(int, char** argv) {
  const glu_ckpt::Converted first = interleave(argv[1], argv[2]);
  const glu_ckpt::Converted again = interleave(argv[1], argv[2]);
  std::cout << to_string(first.digest.value()) << '\n';
  return to_string(first.proof) == "digest" && again.was_complete ? 0 : 1;
}
