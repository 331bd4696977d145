// A run's folder may be moved or copied: its config.resolved.yaml then names the place where it
// was.
#pragma once

#include <string>

#include "tools/config/run_config.h"

namespace snug {

// Of the config that `path` gave, read with what the command line changed. If `path` is the
// config.resolved.yaml of a run that lies elsewhere than the file's output_dir:
//   a resume goes on where the file lies, unless the command line has an output_dir
//   paths of the file that lead into the old place lead into the new one, with a resume or where
//   the old place is no more
//   overwrite, unless the command line has an output_dir, is a usage error: it would remove the
//   run that the file's was copied from
// and config.notes says so. Anything else is left as it is.
void follow_moved_run(RunConfig& config, const std::string& path);

}  // namespace snug
