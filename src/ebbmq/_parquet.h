/* What _speedups.c offers of _parquet.c. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject *encode_columns(PyObject *module, PyObject *columns);
