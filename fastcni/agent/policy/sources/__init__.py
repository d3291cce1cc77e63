"""Read pods, namespaces and policies from a directory of files or the Kubernetes API into a Compiler.

    contract       the methods of a source that the policy service calls
    files          a directory of JSON and YAML files
    kubernetes     the Kubernetes API
    content        puts the documents of a source into the Compiler
    documents      reads one document into records
    unreadable     makes the records that close the pods of an unreadable document
    parse          takes the documents out of a file, within limits
    reader         runs the processes that read files
    lease          finds out whether a program has a file open for writing
    document_file  stores the last documents of a source in a file
    events         sends Kubernetes Events about unreadable objects
"""
