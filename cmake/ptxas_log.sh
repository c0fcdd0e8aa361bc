#!/bin/sh
# A compilation by nvcc with -Xptxas -v. What ptxas says of each kernel's registers is kept in OBJECT.ptxas, for
# scripts/kernel_registers.py; everything else is said as ever.
after_output=no
for argument in "$@"; do
  [ $after_output = yes ] && object=$argument
  case "$argument" in -o) after_output=yes ;; *) after_output=no ;; esac
done
"$@" 2>"$object.stderr"
status=$?
said='^ptxas info *: (Compiling|Compile time|Function properties|Used|[0-9]+ bytes gmem)|^ +[0-9]+ bytes stack frame'
grep -E "$said" "$object.stderr" >"$object.ptxas"
grep -vE "$said" "$object.stderr" >&2
rm "$object.stderr"
exit $status
