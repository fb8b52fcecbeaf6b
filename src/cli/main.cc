#include "cli/command.h"

int main(int argc, char** argv) { return fivefold::run_cli(argc, argv); }
