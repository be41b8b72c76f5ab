// program/main.cc - `quire COMMAND ...`.
#include <csignal>

#include "cli/dispatch.h"

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  return quire::cli::dispatch(argc, argv);
}
